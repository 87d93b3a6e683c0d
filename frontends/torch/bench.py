"""What one call costs on the device: bytes first, then time, run as the replay runs it.

The peak and the storages of the outputs come from one run under the meter, the time from more runs:
many for a short call, one for a long one. Calls run below autograd, without autocast. With one
thread the clock is that thread's processor time, so that other processes do not make long calls
look longer than short ones.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from ...runtime.meter import measure_peak
from .profile_cache import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .program import Call

_BATCH_NS = 200_000  # a sample runs the call often enough to last this long
_MAX_SAMPLES = 25
_MIN_SAMPLES = 3
_SHARE_NS = 30_000_000  # time for the samples of a call that is shorter than this
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
    target = getattr(call.target, "_op", call.target)
    return lambda: target(*args, **kwargs)


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
    inputs = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
    sizes: list[int] = []
    shares: list[int] = []
    first: dict[int, int] = {}
    for index, element in enumerate(elements):
        if not isinstance(element, torch.Tensor):
            sizes.append(-1)
            shares.append(-1)
            continue
        storage = element.untyped_storage()
        sizes.append(allocated_bytes(storage.nbytes(), device))
        key = storage._cdata
        shares.append(-2 if key in inputs else first.get(key, -1))
        first.setdefault(key, index)
    return Measurement(
        str(call.target), -1, reading.peak_bytes, tuple(sizes), tuple(shares), max(1, took)
    )


def measure_time(fn: Callable[[], Any], first_ns: int, device: torch.device) -> int:
    """Median nanoseconds of `fn()`, which has run before and then took about `first_ns`."""
    if device.type == "cuda":
        return _cuda_time(fn)
    return _cpu_time(fn, first_ns)


def allocated_bytes(size: int, device: torch.device) -> int:
    """Bytes that the allocator of `device` takes for a storage."""
    if device.type != "cuda":
        return size
    return -(-size // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES


def expected_timing_ns(first_ns: int) -> int:
    """About how long `measure_time` will take."""
    return max(first_ns, min(_SHARE_NS, _MAX_SAMPLES * max(first_ns, _BATCH_NS)))


def cpu_clock() -> Callable[[], int]:
    """Nanoseconds of processor time if one thread computes, of the wall clock if more do."""
    return time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns


def _cpu_time(fn: Callable[[], Any], first_ns: int) -> int:
    clock = cpu_clock()
    # The first run pays for caches of the library: run a short call again before sizing batches.
    if first_ns < _BATCH_NS * 10:
        start = clock()
        fn()
        first_ns = max(1, clock() - start)
    batch = max(1, min(1_000, _BATCH_NS // first_ns))
    samples: list[float] = []
    begin = clock()
    while len(samples) < _MAX_SAMPLES:
        start = clock()
        for _ in range(batch):
            fn()
        end = clock()
        samples.append((end - start) / batch)
        enough = len(samples) >= _MIN_SAMPLES or end - begin > 10 * _SHARE_NS
        if enough and end - begin > _SHARE_NS:
            break
    return max(1, round(statistics.median(samples)))


def _cuda_time(fn: Callable[[], Any]) -> int:
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
    batch = max(1, min(200, int(10 * _BATCH_NS / rough)))
    count = max(1, min(_MAX_SAMPLES, int(3 * _SHARE_NS / (rough * batch))))
    return max(1, round(statistics.median(sample(batch) for _ in range(count))))


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _tensors(item)
    elif isinstance(argument, dict):
        yield from _tensors(list(argument.values()))
