"""Machines as a roofline sees them: peak rates, one bandwidth, one launch overhead.

Presets hold the dense peaks of public data sheets, which real kernels do not reach: ratios between
ops mean more than the totals. `Machine.measured` times one matrix product and one stream operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ....solver.cache import Cache
from ....solver.errors import InputError
from .bench import Stopwatch
from .hardware import machine_text
from .signature import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable

_GEMM_SIZE = {"cpu": 768, "cuda": 4096}
_STREAM_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
_WARM_UPS = 3
_VERSION = 1  # of the measurement: raise it when the numbers change their meaning
_SHORT_NS = 1


@dataclass(frozen=True)
class Machine:
    """Peak rates of one device.

    Attributes
    ----------
    name
        What it is.
    flops
        Data type name (`float32`, `bfloat16`, ...; `tf32` for the reduced-precision path of
        float32) to floating-point operations per second of matrix products.
    bandwidth
        Bytes per second between memory and the compute units.
    overhead_ns
        Nanoseconds that any operator takes at least.
    elementwise
        Rate, in the flop-equivalents of `roofline.ELEMENT_COST`, of functions such as exp;
        infinite where memory traffic hides them.
    """

    name: str
    flops: dict[str, float] = field(hash=False)
    bandwidth: float
    overhead_ns: int
    elementwise: float = math.inf

    def rate(self, dtype: torch.dtype, *, reduced: bool = False) -> float:
        """Operations per second for a data type; types without an entry run as float32.

        Parameters
        ----------
        dtype
            Type of the operands.
        reduced
            True if float32 may use the `tf32` path, where the machine has one.
        """
        if reduced and dtype is torch.float32 and "tf32" in self.flops:
            return self.flops["tf32"]
        return self.flops.get(dtype_name(dtype), self.flops["float32"])

    @classmethod
    def named(cls, name: str) -> Machine:
        """A preset.

        Raises
        ------
        InputError
            If there is none of that name; the message lists them.
        """
        if name not in PRESETS:
            raise InputError(f"unknown machine {name!r}: use one of {', '.join(PRESETS)}")
        return PRESETS[name]

    @classmethod
    def measured(cls, device: torch.device | str, *, cache: bool = True) -> Machine:
        """The device at hand, with the settings in force (threads); well under a second.

        Parameters
        ----------
        device
            A CPU or CUDA device.
        cache
            Read and write the numbers of an earlier measurement in `cache_dir()`.

        Raises
        ------
        InputError
            If the device is neither.
        """
        where = torch.device(device)
        if where.type not in _GEMM_SIZE:
            raise InputError(f"device {where} cannot be measured: use cpu, cuda or a preset")
        name = machine_text(where)
        store = Cache("machine", name, _Rates, version=_VERSION, most=1) if cache else None
        known = store.get("rates") if store else None
        if known is not None:
            return cls(name, known.flops, known.bandwidth, known.overhead_ns, known.elementwise)
        machine = _measure(name, where)
        if store:
            rate = None if math.isinf(machine.elementwise) else machine.elementwise
            rates = _Rates(machine.flops, machine.bandwidth, machine.overhead_ns, rate)
            store.update({"rates": rates})
        return machine


class _Rates(msgspec.Struct, forbid_unknown_fields=True):
    flops: dict[str, float]
    bandwidth: float
    overhead_ns: int
    elementwise_rate: float | None = None

    @property
    def elementwise(self) -> float:
        """The rate; JSON has no infinity."""
        return math.inf if self.elementwise_rate is None else self.elementwise_rate


# Dense peaks without sparsity, SXM boards.
_HOPPER = {
    "float64": 67e12,
    "float32": 67e12,
    "tf32": 494.7e12,
    "bfloat16": 989.4e12,
    "float16": 989.4e12,
    "float8_e4m3fn": 1978.9e12,
    "float8_e5m2": 1978.9e12,
}
PRESETS: dict[str, Machine] = {
    "a100-80gb": Machine(
        "NVIDIA A100 SXM 80GB",
        {
            "float64": 19.5e12,
            "float32": 19.5e12,
            "tf32": 156e12,
            "bfloat16": 312e12,
            "float16": 312e12,
        },
        bandwidth=2.039e12,
        overhead_ns=5_000,
    ),
    "h100": Machine(
        "NVIDIA H100 SXM",
        _HOPPER,
        bandwidth=3.35e12,
        overhead_ns=5_000,
    ),
    "h200": Machine(
        "NVIDIA H200 SXM",
        _HOPPER,
        bandwidth=4.8e12,
        overhead_ns=5_000,
    ),
    "v100-16gb": Machine(
        "NVIDIA V100 SXM2 16GB",
        {"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12},
        bandwidth=0.9e12,
        overhead_ns=5_000,
    ),
    "cpu": Machine(
        "one core of a server CPU",
        {"float64": 3e10, "float32": 6e10, "bfloat16": 2e10, "float16": 2e10},
        bandwidth=1.5e10,
        overhead_ns=2_000,
        elementwise=6e10,
    ),
}


def _measure(name: str, device: torch.device) -> Machine:
    stopwatch = Stopwatch(device)

    def seconds(fn: Callable[[], Any]) -> float:
        for _ in range(_WARM_UPS):
            fn()
        return stopwatch.time(fn, _SHORT_NS) / 1e9

    kinds = [torch.float32, torch.float64]
    if device.type == "cuda":
        kinds += [torch.bfloat16, torch.float16]
    size = _GEMM_SIZE[device.type]
    flops: dict[str, float] = {}
    with torch.no_grad():
        for dtype in kinds:
            square = torch.ones(size, size, dtype=dtype, device=device)
            flops[dtype_name(dtype)] = 2.0 * size**3 / seconds(partial(torch.mm, square, square))
        if device.type == "cuda":
            # The path that convolutions take by default.
            square = torch.ones(size, size, device=device)
            matmul: Any = torch.backends.cuda.matmul
            previous = matmul.fp32_precision
            try:
                matmul.fp32_precision = "tf32"
                flops["tf32"] = 2.0 * size**3 / seconds(partial(torch.mm, square, square))
            finally:
                matmul.fp32_precision = previous
        stream = torch.ones(_STREAM_BYTES[device.type] // 4, device=device)
        bandwidth = 3.0 * stream.nbytes / seconds(partial(torch.add, stream, stream))
        tiny = torch.ones(4, device=device)
        overhead = seconds(partial(torch.ops.aten.add.Tensor._op, tiny, tiny))
    elementwise = math.inf if device.type == "cuda" else flops["float32"]
    return Machine(name, flops, bandwidth, max(1, round(overhead * 1e9)), elementwise)
