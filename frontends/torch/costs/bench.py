"""What one call costs on the device: bytes first, then time, run as the replay runs it.

The peak and the storages of the outputs come from one run under the meter, the time from more runs:
many for a short call, one for a long one. Calls run below autograd, without autocast, with caches
as cold as a step leaves them. With one thread the clock is that thread's processor time, so that
other processes do not make long calls look longer than short ones.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..bindings import function_of
from .meter import measure_peak
from .profile_cache import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..program import Call

_MAX_SAMPLES = 15
_MIN_SAMPLES = 3
_SHARE_NS = 40_000_000  # wall time for the samples of a short call
_LONG_NS = 300_000_000  # a call that takes this long is timed once
_CUDA_BATCH_NS = 2_000_000
# Written before each sample, to leave the caches as the ops of a step leave them to each other: of
# 0, 1, 4, 8, 12, 16 and 64 MiB, 16 came closest to the times of ops within whole steps (1 MiB of
# second-level cache, 32 MiB shared). With 8, ops that only move memory looked up to three times
# too fast, and with them the step without recomputation.
_SCRATCH_BYTES = 16 << 20
CUDA_BLOCK_BYTES = 512


@contextlib.contextmanager
def as_replayed() -> Iterator[None]:
    """The state in which a replayed op runs: no autograd, no autocast, no garbage collection."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.no_grad(), torch._C._DisableAutocast(), torch._C._AutoDispatchBelowAutograd():
            yield
    finally:
        if collecting:
            gc.enable()


def run_once(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """The call as a function without arguments."""
    function = function_of(call.target, args, kwargs)
    return lambda: function(*args, **kwargs)


def measure_memory(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Measurement:
    """Bytes of one run, not yet timed."""
    fn = run_once(call, args, kwargs)
    if device.type == "cuda":
        fn()  # library handles and their workspaces are made in the first run and stay
    clock = time.perf_counter_ns if device.type == "cuda" else cpu_clock()
    start = clock()
    reading = measure_peak(fn, device, collect=False)
    took = clock() - start
    elements = list(reading.result) if call.unpack else [reading.result]
    peak = reading.peak_bytes
    if device.type == "cuda":
        peak = rounded_peak(peak, elements, device)
    inputs = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
    sizes: list[int] = []
    shares: list[int] = []
    first: dict[int, int] = {}
    for index, element in enumerate(elements):
        if not isinstance(element, torch.Tensor):
            # An output that the call was told to leave out takes nothing.
            sizes.append(0 if element is None else -1)
            shares.append(-1)
            continue
        storage = element.untyped_storage()
        # Of attention's seeds, for instance, a kernel may put some into host memory.
        at_home = element.device.type == device.type
        sizes.append(allocated_bytes(storage.nbytes(), device) if at_home else 0)
        key = storage._cdata
        shares.append(-2 if key in inputs else first.get(key, -1))
        first.setdefault(key, index)
    strides = tuple(tuple(e.stride()) if strided(e) else () for e in elements)
    return Measurement(call.name, -1, peak, tuple(sizes), tuple(shares), max(1, took), strides)


def strided(element: Any) -> bool:
    """True for a tensor that has strides."""
    return isinstance(element, torch.Tensor) and element.layout is torch.strided


def rounded_peak(requested: int, elements: list[Any], device: torch.device) -> int:
    """A peak of requested bytes with the outputs in whole blocks, and the workspace as one."""
    storages = {
        e.untyped_storage()._cdata: e.untyped_storage().nbytes()
        for e in elements
        if isinstance(e, torch.Tensor) and e.device.type == device.type
    }
    blocks = sum(allocated_bytes(size, device) for size in storages.values())
    return blocks + allocated_bytes(max(0, requested - sum(storages.values())), device)


def allocated_bytes(size: int, device: torch.device) -> int:
    """Bytes that the allocator of `device` takes for a storage."""
    if device.type != "cuda":
        return size
    return -(-size // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated; on a CPU, without pushing anything out of memory."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(free.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return sys.maxsize  # not Linux: let the allocator decide


def cpu_clock() -> Callable[[], int]:
    """Nanoseconds of processor time if one thread computes, of the wall clock if more do."""
    return time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns


class Stopwatch:
    """Times calls on one device.

    Parameters
    ----------
    device
        A CPU or CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        if not self._cuda:
            self._clock = cpu_clock()
            self._scratch = torch.zeros(_SCRATCH_BYTES // 4)
            self._cost = statistics.median(-self._clock() + self._clock() for _ in range(99))

    def time(self, fn: Callable[[], Any], first_ns: int) -> int:
        """Median nanoseconds of `fn()`, which has run before and then took about `first_ns`."""
        if not self._cuda:
            return self._cpu_time(fn, first_ns)
        with torch.cuda.device(self._device):  # an event belongs to the current device
            return self._cuda_time(fn)

    def expected_ns(self, first_ns: int) -> int:
        """About how long `time` will take."""
        if first_ns > _LONG_NS:
            return first_ns
        return max(_SHARE_NS, _MIN_SAMPLES * first_ns)

    def _cpu_time(self, fn: Callable[[], Any], first_ns: int) -> int:
        clock = self._clock
        samples: list[int] = []
        begin = time.perf_counter_ns()
        while len(samples) < _MAX_SAMPLES:
            if first_ns < _LONG_NS:
                self._scratch.fill_(1.0)
            start = clock()
            result = fn()
            samples.append(clock() - start)
            del result
            spent = time.perf_counter_ns() - begin
            if spent > (_SHARE_NS if len(samples) >= _MIN_SAMPLES else _LONG_NS):
                break
        return max(1, round(statistics.median(samples) - self._cost))

    def _cuda_time(self, fn: Callable[[], Any]) -> int:
        event: Any = torch.cuda.Event

        def sample(batch: int) -> float:
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            for _ in range(batch):
                fn()
            end.record()
            torch.cuda.synchronize()
            return float(begin.elapsed_time(end)) * 1e6 / batch

        rough = max(1.0, sample(2))
        # Kernels queue up behind each other, so a batch hides the launch where the replay would.
        batch = max(1, min(200, int(_CUDA_BATCH_NS / rough)))
        count = max(1, min(_MAX_SAMPLES, int(_SHARE_NS / (rough * batch))))
        return max(1, round(statistics.median(sample(batch) for _ in range(count))))


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _tensors(item)
    elif isinstance(argument, dict):
        yield from _tensors(list(argument.values()))
