"""Notes the code that runs in a step, and from it the names that the step looks up."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch

from ....solver.errors import CaptureError
from ..watch import describe, user_frame
from .reads import DERIVATIVES, LIBRARIES, SILENT, Reads
from .uses import Uses, globals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_SETTERS = ("manual_seed", "seed", "set_rng_state")
# what sets the state of a process-wide generator: functions, and methods of the generator
_SETTING_CODE = {
    code
    for module in (torch.random, torch.cuda.random)
    for name in _SETTERS
    if (code := getattr(inspect.unwrap(getattr(module, name)), "__code__", None)) is not None
}
_SETTING_METHODS = {"graphsafe_set_state", "manual_seed", "seed", "set_offset", "set_state"}
_Function: Any = torch.autograd.Function
# None from 2.14 on, where it is written in C: a debugger hears of no such calls, a profiler does.
_APPLY = getattr(getattr(_Function.apply, "__func__", None), "__code__", None)


class Recorder:
    """Notes each piece of code that runs, once, with the globals that it sees.

    Attributes
    ----------
    seen
        Code to its globals. The backward of an `autograd.Function` that is applied is among it.
    setter
        The user's line that first set the state of a process-wide generator, or None. Code that
        puts the state back afterwards (`torch.random.fork_rng`) leaves nothing else to see.
    """

    def __init__(self) -> None:
        self.seen: dict[CodeType, dict[str, Any]] = {}
        self.setter: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take what Python tells a profiler or debugger."""
        if event == "call":
            code = frame.f_code
            if code not in self.seen:
                self.seen[code] = frame.f_globals
                if code in _SETTING_CODE:
                    self.setter = self.setter or describe(user_frame(frame))
            if code is _APPLY:
                self._derivatives(frame.f_locals.get("cls"))
        elif event == "c_call":
            of = argument.__self__
            if argument.__name__ == "apply" and isinstance(of, type) and issubclass(of, _Function):
                self._derivatives(of)
            elif argument.__name__ in _SETTING_METHODS and any(of is g for g in _generators()):
                self.setter = self.setter or describe(user_frame(frame))

    def _derivatives(self, function: Any) -> None:
        """Note what the backward of an `autograd.Function` runs."""
        for name in DERIVATIVES:
            method = inspect.unwrap(getattr(function, name))
            if hasattr(method, "__code__"):
                self.seen.setdefault(method.__code__, method.__globals__)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is called inside, beside a profiler or debugger that may be at work.

        Callbacks of the garbage collector, which runs whenever it likes, wait until it is over: the
        clocks and counters that they keep are none of the step's.
        """
        slots: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
            (sys.getprofile, sys.setprofile),
            (sys.gettrace, sys.settrace),
        ]
        put = next((put for get, put in slots if get() is None), None)
        if put is None:
            yield
            return
        waiting = gc.callbacks[:]
        gc.callbacks.clear()
        put(self)
        try:
            yield
        finally:
            put(None)
            gc.callbacks[:0] = waiting

    @contextlib.contextmanager
    def recording_backwards(self) -> Iterator[None]:
        """Record what backwards of the user's functions call inside."""
        node = torch.autograd.function.BackwardCFunction
        known = node.apply

        def apply(*args: Any) -> Any:
            with self.recording():
                return known(*args)  # type: ignore[no-untyped-call]

        node.apply = apply  # type: ignore[method-assign]
        try:
            yield
        finally:
            node.apply = known  # type: ignore[method-assign]

    def refuse_setting(self) -> None:
        """Refuse a step that sets the state of a process-wide generator."""
        if self.setter is not None:
            raise CaptureError(
                f"{self.setter}: the step seeds, or sets the state of, PyTorch's generator, which "
                "a replayed step would not do; do it outside of the step"
            )

    def reads(self) -> Reads:
        """What the code that was met looks up."""
        uses = Uses()
        modules: dict[str, set[str]] = {}
        for code, scope in self.seen.items():
            module = str(scope.get("__name__", ""))
            library = module.split(".")[0]
            if library in SILENT or code.co_name == "<module>":
                continue
            uses.add(code, module, library=library in LIBRARIES)
            if library not in LIBRARIES and _is_module(module, scope):
                modules.setdefault(module, set()).update(globals_of(code))
        return Reads(
            frozenset(uses.names),
            frozenset(uses.words),
            frozenset(uses.dynamic),
            frozenset(uses.whole),
            frozenset(uses.opened),
            frozenset(uses.computed),
            frozenset(uses.read),
            frozenset(uses.written),
            frozenset(uses.own),
            frozenset(uses.users),
            frozenset(uses.environment),
            {name: frozenset(found) for name, found in modules.items()},
        )


def _generators() -> Iterator[torch.Generator]:
    """The generators that operators draw from unless they are given one."""
    yield torch.default_generator
    yield from torch.cuda.default_generators


def _is_module(name: str, scope: dict[str, Any]) -> bool:
    """Whether `scope` holds the globals of an imported module of that name."""
    module = sys.modules.get(name)
    return module is not None and module.__dict__ is scope
