"""Global settings of PyTorch that change what a step computes.

Some are read while a step is traced, and decide of which operators it is made: which attention
runs, whether an LSTM is one operator, what `torch.zeros(3)` is. These are constants of a capture.
Kernels read the others whenever they run: a replay follows them as plain PyTorch does, as long as
they stay the same from a forward to its backward, in which operators of forward run again.

Read from PyTorch's binding itself, in tens of nanoseconds: all this happens in each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_C: Any = torch._C
_backends: Any = torch.backends
_SMALLEST_NORMAL = 2.0**-1022


@dataclass(frozen=True)
class Switch:
    """One setting.

    Attributes
    ----------
    name
        What people call it.
    read
        Returns its value, which pickles and compares by `==`.
    kind
        The type of the devices that it is for; empty for all.
    """

    name: str
    read: Callable[[], Any]
    kind: str = ""


def _modes() -> tuple[str, ...]:
    """Ambient function modes, outermost first; a default device is one of them."""
    depth = _C._len_torch_function_stack()
    if not depth:
        return ()
    return tuple(
        f"{type(mode).__qualname__}({getattr(mode, 'device', '')})"
        for mode in map(_C._get_function_stack_at, range(depth))
    )


def _einsum() -> tuple[Switch, ...]:
    """How einsum finds the order of its products; nothing if it can only go from left to right."""
    paths = _backends.opt_einsum
    if not paths.is_available():
        return ()
    enabled, strategy = paths._get_enabled, paths._get_strategy  # attributes take microseconds
    name = "torch.backends.opt_einsum.strategy"
    return (Switch(name, lambda: strategy() if enabled() else None),)


def _flushes() -> bool:
    """Whether denormal numbers count as zero; there is nothing to ask but arithmetic."""
    return _SMALLEST_NORMAL * 0.5 == 0.0


TRACED = (
    Switch("the default dtype", torch.get_default_dtype),
    Switch("the stack of function modes (default device)", _modes),
    Switch("torch.use_deterministic_algorithms", _C._get_deterministic_algorithms),
    *_einsum(),
    Switch("torch.backends.mha fastpath", _backends.mha.get_fastpath_enabled),
    Switch("torch.backends.cuda.flash_sdp", _C._get_flash_sdp_enabled),
    Switch("torch.backends.cuda.math_sdp", _C._get_math_sdp_enabled),
    Switch("torch.backends.mkldnn.enabled", _C._get_mkldnn_enabled, "cpu"),
    Switch("torch.backends.cuda.mem_efficient_sdp", _C._get_mem_efficient_sdp_enabled, "cuda"),
    Switch("torch.backends.cuda.cudnn_sdp", _C._get_cudnn_sdp_enabled, "cuda"),
    Switch("the order of attention kernels", lambda: tuple(_C._get_sdp_priority_order()), "cuda"),
    Switch(
        "torch.backends.cuda.fp16_bf16_reduction_math_sdp",
        _C._get_math_sdp_allow_fp16_bf16_reduction,
        "cuda",
    ),
    Switch("torch.backends.cudnn.enabled", _C._get_cudnn_enabled, "cuda"),
)


def _precision(backend: str, what: str) -> Callable[[], str]:
    return lambda: str(_C._get_fp32_precision_getter(backend, what))


RUNNING = (
    Switch("torch.use_deterministic_algorithms", _C._get_deterministic_algorithms),
    Switch("torch.backends.mkldnn.enabled", _C._get_mkldnn_enabled, "cpu"),
    Switch("torch.backends.mkldnn.deterministic", _C._get_mkldnn_deterministic, "cpu"),
    Switch("float32 matmul precision", _precision("mkldnn", "matmul"), "cpu"),
    Switch("float32 convolution precision", _precision("mkldnn", "conv"), "cpu"),
    Switch("float32 RNN precision", _precision("mkldnn", "rnn"), "cpu"),
    # Of the calling thread; on CUDA, backward runs in another one, where it does not matter.
    Switch("the number of threads", torch.get_num_threads, "cpu"),
    Switch("torch.set_flush_denormal", _flushes, "cpu"),
    Switch("float32 matmul precision", _precision("cuda", "matmul"), "cuda"),
    Switch("float32 convolution precision", _precision("cuda", "conv"), "cuda"),
    Switch("float32 RNN precision", _precision("cuda", "rnn"), "cuda"),
    Switch("torch.backends.cudnn.enabled", _C._get_cudnn_enabled, "cuda"),
    Switch("torch.backends.cudnn.benchmark", _C._get_cudnn_benchmark, "cuda"),
    Switch("torch.backends.cudnn.deterministic", _C._get_cudnn_deterministic, "cuda"),
    Switch(
        "reduced precision of float16 sums",
        _C._get_cublas_allow_fp16_reduced_precision_reduction,
        "cuda",
    ),
    Switch(
        "reduced precision of bfloat16 sums",
        _C._get_cublas_allow_bf16_reduced_precision_reduction,
        "cuda",
    ),
    Switch("accumulation in float16", _C._get_cublas_allow_fp16_accumulation, "cuda"),
)


def traced() -> tuple[tuple[str, Any], ...]:
    """Name and value of each setting that a trace reads."""
    return tuple((switch.name, switch.read()) for switch in TRACED)


def of_kinds(switches: Iterable[Switch], kinds: Iterable[str]) -> list[Switch]:
    """The settings that matter on devices of some types."""
    wanted = {"", *kinds}
    return [switch for switch in switches if switch.kind in wanted]


def changed(
    before: Iterable[tuple[str, Any]], kinds: Iterable[str]
) -> Iterator[tuple[str, Any, Any]]:
    """Name, value now and value before of what a trace would read otherwise now."""
    values = dict(before)
    for switch in of_kinds(TRACED, kinds):
        now = switch.read()
        if switch.name in values and now != values[switch.name]:
            yield switch.name, now, values[switch.name]


class Running:
    """Notices settings that changed from a forward to its backward.

    Parameters
    ----------
    kinds
        Types of the step's devices.
    """

    __slots__ = ("_reads", "_switches")

    def __init__(self, kinds: Iterable[str]) -> None:
        self._switches = of_kinds(RUNNING, kinds)
        self._reads = [switch.read for switch in self._switches]

    def now(self) -> list[Any]:
        """The values."""
        return [read() for read in self._reads]

    def difference(self, before: list[Any]) -> str:
        """The first difference from earlier values in words; empty without one."""
        now = self.now()
        if now == before:
            return ""
        return next(
            f"{switch.name} is {new} in backward and was {old} in forward"
            for switch, new, old in zip(self._switches, now, before, strict=True)
            if new != old
        )
