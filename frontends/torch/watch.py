"""Watches the user's code while it runs on fake tensors.

Every call of a torch function passes here. Tensors with data that the code holds on to (closures,
plain attributes, parameters kept in lists) are replaced by their stand-ins, and every traced op is
marked with the user's line and the module it came from.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as global_hooks
from torch.overrides import TorchFunctionMode

from ...solver.errors import CaptureError
from . import export, validity
from .faithful import gapped, refuse_inner_casts, refuse_written
from .known import Known
from .rewritten import call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType

    from torch import nn

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CAPTURE = _HERE + "capture.py"
_MANAGERS = contextlib.__file__  # between a user's `with` and what it runs
# PyTorch's own tracing code, whose tensors are none of the user's
_TRACERS = tuple(_TORCH + part for part in ("_subclasses", "_functorch", "_library", "_ops", "fx"))
_STATISTICS = {"batch_norm", "instance_norm", "native_batch_norm"}
_SWITCHES = {"requires_grad_"}
_HOOK_MAKERS = {"register_hook", "register_post_accumulate_grad_hook"}


class Watch(TorchFunctionMode):
    """Substitutes stand-ins for real tensors and records where calls come from.

    Parameters
    ----------
    stand_ins
        Identity of a real tensor to what takes its place.
    names
        Identity of a module to its path.
    adopt
        Called with a real tensor that has no stand-in; returns one, or raises.
    trace_hooks
        False: a hook registered on a tensor is refused.
    """

    def __init__(
        self,
        stand_ins: Mapping[int, torch.Tensor],
        names: Mapping[int, str],
        adopt: Callable[[torch.Tensor], torch.Tensor],
        trace_hooks: bool,
    ) -> None:
        super().__init__()
        self.stand_ins = stand_ins
        self.names = names
        self.adopt = adopt
        self.trace_hooks = trace_hooks
        self.known = Known()
        self.path: list[str] = []
        self._handles: list[Any] = []

    def __enter__(self) -> Watch:
        """Start watching, and follow which module runs."""
        self._handles = [
            global_hooks.register_module_forward_pre_hook(self._enter_module),
            global_hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def _enter_module(self, module: nn.Module, _args: Any) -> None:
        self.path.append(self.names.get(id(module), self.path[-1] if self.path else ""))

    def _leave_module(self, _module: nn.Module, _args: Any, _out: Any) -> None:
        if self.path:
            self.path.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func` on stand-ins."""
        name = getattr(func, "__name__", "")
        # Also from PyTorch's own code: its tensors for tracing turn bool(x) into x.item().
        answer = self.known.answer(name, args, lambda: describe(user_frame(sys._getframe(2))))
        if answer is not None:
            return answer[0]
        caller = sys._getframe(1)
        asker = outside_tracers(caller)
        valid = validity.answer(name, args, asker, lambda: describe(user_frame(asker)))
        if valid is not None:
            return valid
        if caller.f_code.co_filename.startswith(_TRACERS):
            result = func(*args, **(kwargs or {}))
            self.known.note(func, name, args, kwargs or {}, result)  # x.to(...) of a tracer
            return result
        line = step_line(caller)
        origin = line or describe(user_frame(caller))
        if name in _HOOK_MAKERS and not self.trace_hooks:
            raise CaptureError(
                f"{origin}: a hook is registered on a tensor inside the step; it would run at "
                "capture only. Remove it, or pass trace_hooks=True if it only computes"
            )
        if kwargs and isinstance(kwargs.get("generator"), torch.Generator):
            raise CaptureError(
                f"{origin}: {name} draws from its own generator, whose state a plan cannot "
                "restore; use the default generator"
            )
        if name in _SWITCHES and args and self._is_input(args[0]):
            raise CaptureError(
                f"{origin}: the step switches on the gradient of one of its inputs; call "
                "requires_grad_() on it before"
            )
        export.set_origin(f"{line}\n{self.path[-1] if self.path else ''}")
        args, kwargs = self._swap(args), self._swap(kwargs) if kwargs else {}
        every = (*args, *kwargs.values())
        refuse_inner_casts(name, every, origin)
        gaps = gapped(every)
        result = call(func, name, args, kwargs, origin)
        refuse_written(gaps, name, origin)
        if name in _STATISTICS:
            for tensor in statistics(func, args, kwargs):
                export.count_change(tensor)
        self.known.note(func, name, args, kwargs, result)
        return result

    def _is_input(self, tensor: Any) -> bool:
        """Whether a tensor is an input of the step that does not require a gradient."""
        known = self.stand_ins.values()
        return any(tensor is item and not item.requires_grad for item in known)

    def _swap(self, argument: Any) -> Any:
        """The argument with every real tensor replaced; untouched if it holds none."""
        if isinstance(argument, torch.Tensor):
            if not export.is_plain(argument):
                return argument
            stand_in = self.stand_ins.get(id(argument))
            return self.adopt(argument) if stand_in is None else stand_in
        if type(argument) in (tuple, list):
            new = [self._swap(item) for item in argument]
            if all(a is b for a, b in zip(new, argument, strict=True)):
                return argument
            return type(argument)(new)
        if type(argument) is dict:
            return {key: self._swap(item) for key, item in argument.items()}
        return argument


def statistics(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """The running statistics that a call of a norm updates, without counting a change of them."""
    functional = getattr(func, "__module__", "") == "torch.nn.functional"
    start = 1 if functional else 3
    training = args[5] if len(args) > 5 else func.__name__ == "instance_norm"
    if not kwargs.get("training", kwargs.get("use_input_stats", training)):
        return []
    names = (kwargs.get("running_mean"), kwargs.get("running_var"))
    found = (*args[start : start + 2], *names)
    return [item for item in found if isinstance(item, torch.Tensor)]


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither PyTorch's nor ours."""
    while frame is not None and _internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def outside_tracers(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not of PyTorch's tracing code."""
    while frame is not None and frame.f_code.co_filename.startswith(_TRACERS):
        frame = frame.f_back
    return frame


def step_line(frame: FrameType | None) -> str:
    """The user's line within the step that `frame` is of; empty for PyTorch's own modules.

    What called the capture is no line of the step: it would be the same for every operator.
    """
    while frame is not None and _internal(frame.f_code.co_filename):
        frame = None if frame.f_code.co_filename == _CAPTURE else frame.f_back
    return describe(frame)


def describe(frame: FrameType | None) -> str:
    """`file.py:12  code of the line` of a frame."""
    if frame is None:
        return ""
    return describe_line(frame.f_code.co_filename, frame.f_lineno)


def describe_line(filename: str, line: int) -> str:
    """`file.py:12  code of the line`, the file relative to the working folder if it is below it."""
    code = linecache.getline(filename, line).strip()
    here = os.getcwd() + os.sep
    shown = filename.removeprefix(here)
    return f"{shown}:{line}  {code}" if code else f"{shown}:{line}"


def error_origin(error: BaseException, names: Mapping[int, str]) -> str:
    """Where an exception was raised: the user's line, or else the module; empty if in neither.

    `names` maps the identity of a module to its path, as for `Watch`.
    """
    line = module = ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if not _internal(frame.f_code.co_filename):
            line = describe_line(frame.f_code.co_filename, trace.tb_lineno)
        owner = frame.f_locals.get("self")
        if id(owner) in names:
            module = f"{names[id(owner)] or 'the model'} ({type(owner).__name__})"
        trace = trace.tb_next
    return line or module


def _internal(filename: str) -> bool:
    return filename.startswith((_TORCH, _HERE, _MANAGERS, "<"))
