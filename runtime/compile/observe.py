"""The peak of a compiled step, from the program that the compiler wrote, without running it.

Inductor writes the host side of each graph in Python: where buffers are made, reused and dropped
between calls of kernels. That program is run here on fake tensors, with kernels that do nothing.
What is alive at each point is then known. What a library takes inside one of its calls is measured,
one call at a time.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import types
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...frontends.torch.assemble import allocated
from .dry import Nothing
from .workspaces import workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)
_EMPTY = {torch.ops.aten.empty_strided.default, torch.ops.aten.empty.memory_format}
_MEASURED = ("aten", "mkldnn", "prims", "quantized", "onednn")  # alone: not what communicates


class Compiled(NamedTuple):
    """What inductor made of one graph: the values it was compiled for, and its program."""

    inputs: tuple[Any, ...]
    program: Any


class Watch:
    """An `inner_compile` of `compile_fx` that remembers what was compiled.

    Attributes
    ----------
    forward, backward
        The two halves of the last training graph; None where one was not compiled yet.
    """

    def __init__(self) -> None:
        self.forward: Compiled | None = None
        self.backward: Compiled | None = None

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
    ) -> Any:
        """Compile a graph with inductor."""
        from torch._inductor.compile_fx import compile_fx_inner

        made = compile_fx_inner(gm, example_inputs, **kwargs)
        found = Compiled(tuple(map(_sizes, example_inputs)), made)
        if kwargs.get("is_backward"):
            self.backward = found
        else:
            self.forward = found
        return made

    def digest(self) -> str:
        """SHA-256 of both programs with their kernels; empty if they are not in Python files.

        Comments are left out: they number what a process compiles.
        """
        digest = hashlib.sha256()
        for half in (self.forward, self.backward):
            if half is None:
                return ""
            try:
                text = Path(inspect.getfile(_function(half.program))).read_text()
            except (OSError, TypeError, AttributeError):
                return ""
            lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
            digest.update("\n".join(lines).encode())
        return digest.hexdigest()

    def peak_bytes(self, tangents: int, device: torch.device) -> int | None:
        """Largest number of bytes at once beyond the inputs of the forward.

        Parameters
        ----------
        tangents
            How many inputs of the backward come from its caller, who holds them; they are last.
        device
            Whose memory is counted, rounded as its allocator does.

        Returns
        -------
        int or None
            None, with a log line, where the program cannot be followed: it is not in Python, or
            cannot be run on fake tensors.
        """
        if self.forward is None or self.backward is None:
            return None
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return _peak(self.forward, self.backward, tangents, device)
        except Exception as error:  # whatever a program of the compiler may raise there
            _log.info("the compiled program cannot be followed, its peak is not known: %r", error)
            return None


def _peak(forward: Compiled, backward: Compiled, tangents: int, device: torch.device) -> int:
    meter = _Meter(device)
    inputs = [_like(item) for item in forward.inputs]
    for item in inputs:
        meter.ignore(item)
    early, late = _dry(forward.program, meter), _dry(backward.program, meter)
    saved = len(backward.inputs) - tangents
    with meter:
        results = list(early(list(inputs)))
        # Held by the caller: what the model returns, and what comes with its backward.
        held = results[: len(results) - saved]
        held += [_like(item) for item in backward.inputs[saved:]]
        arguments = results[len(results) - saved :] + held[len(held) - tangents :]
        del results
        gradients = late(arguments)
    del gradients
    return meter.peak


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that are alive, counted as operators make them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count what it returns."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        fresh = [
            self._count(item)
            for item in (result if isinstance(result, (tuple, list)) else (result,))
            if isinstance(item, torch.Tensor)
        ]
        if any(fresh) and func not in _EMPTY and func.namespace in _MEASURED:
            self.note(str(func), func, args, kwargs)
        return result

    def note(self, name: str, call: Any, args: Any, kwargs: Any) -> None:
        """Count what a call takes for itself; its results are counted already."""
        space = workspace_bytes(name, call, args, kwargs, self.device)
        self.peak = max(self.peak, self.live + allocated(space, self.device, self.device))

    def _count(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return False
        size = allocated(storage.nbytes(), tensor.device, self.device)
        self._known.add(key)
        weakref.finalize(storage, self._drop, key, size).atexit = False
        self.live += size
        self.peak = max(self.peak, self.live)
        return True

    def ignore(self, value: Any) -> None:
        """Do not count what is behind a tensor."""
        if isinstance(value, torch.Tensor):
            self._known.add(value.untyped_storage()._cdata)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class _Externals:
    """Library kernels: those that write into a buffer do nothing, others run on fake tensors."""

    def __init__(self, kernels: Any, meter: _Meter) -> None:
        self._kernels, self._meter = kernels, meter

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        kernel = getattr(self._kernels, name)
        if kwargs.get("out") is None:
            return kernel(*args, **kwargs)
        self._meter.note(f"{name} into a buffer", kernel, args, kwargs)
        return kwargs["out"]


def _dry(program: Any, meter: _Meter) -> Callable[[list[Any]], Sequence[Any]]:
    """The host program of a compiled graph, with kernels that do nothing."""
    call = program.current_callable
    function = _function(program)
    module = function.__globals__
    if "extern_kernels" not in module:
        raise TypeError(f"{function.__qualname__} is not a program written by inductor")
    names: dict[str, Any] = dict(module)

    def rebound(item: Any) -> Any:
        item = item.__func__ if isinstance(item, types.MethodType) else item
        return types.FunctionType(item.__code__, names, item.__name__, item.__defaults__)

    for name, value in module.items():
        if name.startswith("empty_strided_"):
            names[name] = partial(_empty, name.removeprefix("empty_strided_").split("_")[0])
        elif name == "reinterpret_tensor":
            names[name] = _reinterpret
        elif name == "extern_kernels":
            names[name] = _Externals(value, meter)
        elif name.startswith(("assert_size_stride", "assert_alignment")) or _is_kernel(name, value):
            names[name] = Nothing()
        elif isinstance(value, types.FunctionType) and value.__globals__ is module:
            names[name] = rebound(value)
    run = rebound(function)
    if not isinstance(call, types.MethodType):
        return run  # type: ignore[no-any-return]
    parts = [rebound(part) for part in getattr(call.__self__, "partitions", ())]
    return partial(run, types.SimpleNamespace(partitions=parts))


def _function(program: Any) -> types.FunctionType:
    """The host program of a compiled graph, as it was written."""
    call = program.current_callable
    function = call.__func__ if isinstance(call, types.MethodType) else call
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"{function!r} is not a program written by inductor")
    return function


def _is_kernel(name: str, value: Any) -> bool:
    """Whether a name of a program is a kernel: none may run, fake tensors have no memory."""
    launched = hasattr(value, "run") and not isinstance(value, types.ModuleType)
    return name.startswith(("cpp_", "triton_")) or launched


def _empty(
    device: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _reinterpret(
    base: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    return base.as_strided(size, stride, base.storage_offset() + offset)


def _sizes(value: Any) -> Any:
    """What a value looks like, without the value."""
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype, value.device


def _like(sizes: Any) -> Any:
    """A fake tensor that looks like a value."""
    if not isinstance(sizes, tuple):
        return sizes
    shape, stride, dtype, device = sizes
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)
