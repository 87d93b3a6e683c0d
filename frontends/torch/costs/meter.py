"""Memory and time of a call, as the device's allocator and clock see them.

On the CPU the peak is rebuilt from the allocator's own events, op-internal temporaries included:
every block counts with the bytes that were asked for, zero-byte blocks never appear. Memory that
libraries take around that allocator (oneDNN scratchpads) is not seen, and neither is the end of a
block that was allocated before the recording began: a step that frees old gradients is to free them
before it is measured. On CUDA the caching allocator's counters of requested bytes are read (those
of allocated bytes under an allocator that does not count requests). Neither rounding to 512 bytes
nor the rest of a block that was too small to be split off (up to 1 MiB each) is in them.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from ....solver.errors import InputError, LowtideError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_Result = TypeVar("_Result")

_SETTLED_S = 0.05  # the caches of a processor are filled in a few milliseconds

_autograd: Any = torch.autograd  # the recorders are private: no stubs


class MeterError(LowtideError):
    """Memory cannot be measured here and now; the message says what is in the way."""


@dataclass(frozen=True, slots=True)
class PeakReading(Generic[_Result]):
    """What a call did to memory, relative to the moment before it.

    Attributes
    ----------
    peak_bytes
        Largest number of bytes allocated at once beyond those allocated at the start; at least 0.
    end_bytes
        Bytes allocated at the end minus bytes allocated at the start; the result is still alive.
    result
        What the call returned.
    """

    peak_bytes: int
    end_bytes: int
    result: _Result


def measure_peak(
    fn: Callable[[], _Result],
    device: torch.device | str | None = None,
    *,
    collect: bool = True,
) -> PeakReading[_Result]:
    """Peak memory of `fn()` on `device`.

    Parameters
    ----------
    fn
        The call to measure. It runs once.
    device
        A CPU (default) or CUDA device. Allocations on other devices are not counted.
    collect
        Run the garbage collector first, so that old cycles are not freed in the middle of the
        measurement. Turn off to measure many small calls.

    Raises
    ------
    MeterError
        If a profiler already runs in this thread (CPU only): there can be one at a time.
    InputError
        If the device is neither a CPU nor a CUDA device.
    """
    where = torch.device("cpu" if device is None else device)
    if collect:
        gc.collect()
    if where.type == "cpu":
        return _measure_cpu(fn)
    if where.type == "cuda":
        return _measure_cuda(fn, where)
    raise InputError(f"memory cannot be measured on device {where}: use a cpu or cuda device")


def measure_step_time(
    fns: Mapping[str, Callable[[], Any]],
    repeats: int = 5,
    *,
    warmup: int = 1,
    settle: bool = False,
    device: torch.device | str | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, list[float]]:
    """Seconds of each call, all of them run in turns so that drift of the machine hits all alike.

    Parameters
    ----------
    fns
        Name -> call. Every second round runs in the opposite order, and every pair of rounds begins
        one further, so that none always follows the same other, or itself.
    repeats, warmup
        Timed rounds, and untimed rounds before them.
    settle
        Run each call once more right before it is timed, as steps of a training follow each other:
        what other calls left in the caches makes some percent of a step of a few milliseconds, the
        more the more calls take turns. Calls of 50 ms and more go without.
    device
        On a CUDA device its own events are the clock.
    clock
        Elsewhere: nanoseconds, by default of the monotonic clock.

    Returns
    -------
    dict
        Name -> `repeats` seconds, in the order of the rounds.
    """
    where = torch.device("cpu" if device is None else device)
    timed = partial(_timed_cuda, where) if where.type == "cuda" else partial(_timed, clock)
    took = dict.fromkeys(fns, 0.0)
    for _ in range(warmup):
        for name, fn in fns.items():
            took[name] = timed(fn)
    seconds: dict[str, list[float]] = {name: [] for name in fns}
    for turn in range(repeats):
        names = list(fns) if turn % 2 == 0 else list(fns)[::-1]
        first = turn // 2 % max(1, len(names))
        for name in (*names[first:], *names[:first]):
            if settle and took[name] < _SETTLED_S:
                fns[name]()
            took[name] = timed(fns[name])
            seconds[name].append(took[name])
    return seconds


def extra_time(seconds: Sequence[float], base: Sequence[float]) -> float:
    """(time - base) / base: the median over rounds, in which a clock that drifts cancels out."""
    return statistics.median(a / b for a, b in zip(seconds, base, strict=True)) - 1.0


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Median of each list that `measure_step_time` returns."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def _timed(clock: Callable[[], int], fn: Callable[[], Any]) -> float:
    start = clock()
    fn()
    return (clock() - start) / 1e9


def _timed_cuda(device: torch.device, fn: Callable[[], Any]) -> float:
    event: Any = torch.cuda.Event
    with torch.cuda.device(device):  # an event belongs to the current device
        begin, end = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize(device)
        begin.record()
        fn()
        end.record()
        torch.cuda.synchronize(device)
        return float(begin.elapsed_time(end)) / 1e3


def _measure_cuda(fn: Callable[[], _Result], device: torch.device) -> PeakReading[_Result]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)
    result = fn()
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_stats(device)
    requests = after.get("requested_bytes.all.peak", 0) > 0
    kind = "requested_bytes.all" if requests else "allocated_bytes.all"
    start = int(before.get(f"{kind}.current", 0))
    peak, end = (int(after.get(f"{kind}.{what}", 0)) for what in ("peak", "current"))
    return PeakReading(max(0, peak - start), end - start, result)


def _measure_cpu(fn: Callable[[], _Result]) -> PeakReading[_Result]:
    # The older recorder logs the same allocator events as kineto in a quarter of the time, and
    # prints nothing to stderr.
    record = _record_legacy if hasattr(_autograd, "_enable_profiler_legacy") else _record_kineto
    result, changes = record(fn)
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return PeakReading(peak, live, result)


def _config(state: Any) -> Any:
    experimental = torch._C._profiler._ExperimentalConfig()
    # Positional: record_shapes, profile_memory, with_stack, with_flops, with_modules.
    return _autograd.ProfilerConfig(state, False, True, False, False, False, experimental)


def _refuse_nesting() -> None:
    if _autograd._profiler_enabled():
        raise MeterError(
            "memory cannot be measured while a torch profiler runs: stop the profiler first"
        )


def _record_legacy(fn: Callable[[], _Result]) -> tuple[_Result, list[int]]:
    """Run `fn` and return every change of allocated CPU bytes, in order."""
    _refuse_nesting()
    _autograd._enable_profiler_legacy(_config(_autograd.ProfilerState.CPU))
    try:
        result = fn()
    finally:
        threads = _autograd._disable_profiler_legacy()
    found = [
        [event for event in events if event.kind() == "memory_alloc" and event.cpu_memory_usage()]
        for events in threads
    ]
    found = [events for events in found if events]
    if len(found) == 1:
        return result, [event.cpu_memory_usage() for event in found[0]]
    # One list for each thread that allocated: merge by time. The sort is stable.
    merged = [event for events in found for event in events]
    if merged:
        origin = merged[0]
        merged.sort(key=origin.cpu_elapsed_us)
    return result, [event.cpu_memory_usage() for event in merged]


def _record_kineto(fn: Callable[[], _Result]) -> tuple[_Result, list[int]]:
    """The same through the profiler behind `torch.profiler`."""
    _refuse_nesting()
    config, activities = _config(_autograd.ProfilerState.KINETO), {_autograd.ProfilerActivity.CPU}
    _autograd._prepare_profiler(config, activities)
    _autograd._enable_profiler(config, activities)
    try:
        result = fn()
    finally:
        events = _autograd._disable_profiler().events()
    cpu = _autograd.DeviceType.CPU
    found = [e for e in events if e.name() == "[memory]" and e.device_type() == cpu]
    return result, [event.nbytes() for event in sorted(found, key=lambda event: event.start_ns())]
