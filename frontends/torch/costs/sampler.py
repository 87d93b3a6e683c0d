"""Runs signatures one at a time, the costliest first, within a time budget."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import msgspec

from .bench import Stopwatch, available_bytes, measure_memory, run_once
from .meter import MeterError
from .roofline import value_bytes
from .synthetic import Synthesizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..captured import Captured
    from .entries import Entry

    Progress = Callable[[int, int, str], None]

_log = logging.getLogger(__name__)

_GRACE_S = 30.0  # runs for memory may go on for so long after the budget is spent
_ROOM = 0.8  # part of the free memory that one call may take


class Sampler:
    """Fills `found` of signatures.

    Parameters
    ----------
    captured
        The step that they belong to.
    budget_s
        Seconds to spend. After them, calls are run once for their memory, not timed.
    """

    def __init__(self, captured: Captured, budget_s: float) -> None:
        self._captured = captured
        self._metas = captured.program.value_meta
        self._synthesizer = Synthesizer(captured)
        self._stopwatch = Stopwatch(captured.device)
        self._deadline = time.monotonic() + budget_s
        self._last = self._deadline + max(budget_s, _GRACE_S)

    def run(self, entries: list[Entry], progress: Progress | None = None) -> None:
        """Measure `entries` in their order; what cannot run is logged and left as it is."""
        reserve_ns = sum(entry.roofline_ns for entry in entries)
        skipped = 0
        for done, entry in enumerate(entries):
            if progress is not None:
                progress(done, len(entries), entry.call.name)
            reserve_ns -= entry.roofline_ns
            if time.monotonic() + entry.roofline_ns / 1e9 > self._last:
                skipped += 1
                continue
            try:
                self._measure(entry, reserve_ns)
            except MeterError:
                raise
            except Exception as error:
                # Any operator of any library: the plan stays valid, its estimate is coarser.
                reason = str(error).strip().splitlines() or [type(error).__name__]
                _log.warning(
                    "%s cannot be measured alone (%s): its time is a roofline's",
                    entry.call.name,
                    reason[0],
                )
        if skipped:
            _log.warning(
                "%d of %d signatures not run: the profiling budget is spent, raise it",
                skipped,
                len(entries),
            )
        if progress is not None and entries:
            progress(len(entries), len(entries), "")

    def _measure(self, entry: Entry, reserve_ns: float) -> None:
        values = {*entry.call.refs(), *(v for v in entry.call.outputs if v is not None)}
        needed = sum(value_bytes(self._metas[v]) for v in values)
        free = available_bytes(self._captured.device)
        if needed > _ROOM * free:
            raise MemoryError(f"it takes {needed} B and {free} B are free")
        args, kwargs = self._synthesizer.arguments(entry.call)
        fresh = entry.found is None
        if entry.found is None:
            entry.found = measure_memory(entry.call, args, kwargs, self._captured.device)
        first_ns = entry.found.first_ns
        left_ns = (self._deadline - time.monotonic()) * 1e9 - reserve_ns
        if self._stopwatch.expected_ns(first_ns) > left_ns:
            return
        fn = run_once(entry.call, args, kwargs)
        if not fresh:
            fn()
        time_ns = self._stopwatch.time(fn, first_ns)
        entry.found = msgspec.structs.replace(entry.found, time_ns=time_ns)
