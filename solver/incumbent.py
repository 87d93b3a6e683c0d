"""What the solver holds on to: the best schedule within the budget, and the smallest peak seen."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .progress import Event, Silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .calibration import Calibration
    from .control import Control
    from .progress import Progress
    from .search.anneal import Found


@dataclass
class Incumbent:
    """Best schedule within `room` bytes (resident bytes not counted), and a lower bound on time.

    Searches in other threads may offer schedules too.

    Attributes
    ----------
    best
        The fastest within the budget, in any order.
    in_order
        The fastest within the budget whose first runs are in base order, as integer programs need.
    bound_ns
        Proven lower bound over the class of schedules that the staged program covers.
    smallest
        The schedule with the smallest peak seen so far, within the budget or not.
    calibration
        What `progress` tells people times by; all times here stay sums of op times.
    """

    room: int
    base_ns: int
    control: Control
    progress: Progress
    best: Found | None = None
    in_order: Found | None = None
    smallest: Found | None = None
    bound_ns: int = 0
    origin: str = ""
    calibration: Calibration | None = None
    notes: list[str] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def offer(self, found: Found | None, origin: str) -> bool:
        """Take `found` if it is better than what is held; True if it is the best in any order."""
        if found is None:
            return False
        with self._lock:
            if self.smallest is None or found.peak < self.smallest.peak:
                self.smallest = found
            if found.peak > self.room:
                return False
            if (self.in_order is None or found.time < self.in_order.time) and keeps_order(
                found.computes
            ):
                self.in_order = found
            if self.best is not None and found.time >= self.best.time:
                return False
            self.best, self.origin = found, origin
            self._tell(origin)
            return True

    def apart(self) -> Incumbent:
        """An empty one for the same budget, that nobody is told of."""
        return Incumbent(self.room, self.base_ns, self.control, Silent())

    def raise_bound(self, bound_ns: int, origin: str) -> None:
        """Take a proven bound if it is higher."""
        with self._lock:
            if bound_ns > self.bound_ns:
                self.bound_ns = bound_ns
                self._tell(origin)

    @property
    def gap(self) -> float:
        """(time - bound) / time of the best schedule; infinity without one."""
        if self.best is None:
            return float("inf")
        return max(0.0, (self.best.time - self.bound_ns) / max(1, self.best.time))

    def _tell(self, note: str) -> None:
        time = None if self.best is None else self.best.time
        bound = self.bound_ns if self.bound_ns > 0 else None
        self.progress.update(
            Event(self.control.elapsed, time, bound, self.base_ns, note, self.calibration)
        )


def keeps_order(computes: Sequence[int]) -> bool:
    """Whether the ops run for the first time in base order."""
    newest = -1
    for op in computes:
        if op > newest + 1:
            return False
        newest = max(newest, op)
    return True
