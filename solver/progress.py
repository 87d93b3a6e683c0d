"""How a long solve tells what it has found so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .calibration import gap, overhead
from .units import format_percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from .calibration import Calibration


@dataclass(frozen=True)
class Event:
    """A new incumbent, a new bound, or a note.

    Attributes
    ----------
    seconds
        Since the solve began.
    incumbent_ns, bound_ns
        Time of the best schedule within the budget, and the lower bound; None if not known yet.
    base_ns
        Time of the step without recomputation.
    note
        What happened, in a few words.
    calibration
        Turns these times, sums of op times, into times of steps where they are told to people;
        None: they are the same.
    """

    seconds: float
    incumbent_ns: int | None
    bound_ns: int | None
    base_ns: int
    note: str
    calibration: Calibration | None = None


class Progress(Protocol):
    """Anything that wants to hear of events."""

    def update(self, event: Event) -> None:
        """Take note of `event`; called from the solving thread."""


class Silent:
    """Hears everything and says nothing."""

    def update(self, event: Event) -> None:
        """Do nothing."""


def teller(progress: Progress) -> Callable[[str], None]:
    """What passes notes from before the clock starts on to `progress`."""
    return lambda note: progress.update(Event(0.0, None, None, 0, note))


def describe(event: Event) -> str:
    """`overhead 3.398%  bound 3.390%  gap 0.008%  note`, as the plan will say."""
    parts: list[str] = []
    if event.base_ns <= 0 and event.incumbent_ns is None:  # before the clock starts
        return event.note
    best, bound, base = event.incumbent_ns, event.bound_ns, event.base_ns
    if best is None:
        parts.append("no plan yet")
    elif base > 0:
        parts.append(f"overhead {format_percent(overhead(best, base, event.calibration))}")
    if bound is not None and base > 0:
        least = max(0.0, overhead(bound, base, event.calibration))
        parts.append(f"bound {format_percent(least)}")
    if best is not None and bound is not None and best > 0:
        parts.append(f"gap {format_percent(gap(best, bound, event.calibration))}")
    if event.note:
        parts.append(event.note)
    return "  ".join(parts)
