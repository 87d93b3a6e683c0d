"""A plan: a schedule with all that is needed to trust it."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import msgspec

from .schedule import Schedule
from .units import format_bytes, format_percent


class Status(StrEnum):
    """How good a plan is known to be."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


class Stop(StrEnum):
    """Why the solver returned."""

    DONE = "done"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, omit_defaults=True):
    """A schedule, what it costs, and how far from the best it can be.

    Attributes
    ----------
    graph_name, graph_hash
        The graph it is for; replay and `check` refuse another one.
    budget_bytes, resident_bytes
        Upper bound on the peak, and the part of it that is always in memory.
    peak_bytes, time_ns, base_time_ns
        Predicted peak and time of the step, and the time without recomputation.
    lower_bound_ns
        No schedule of `bound_class` within the budget is faster; -1 if nothing is known.
    bound_class
        The schedules that the bound speaks of.
    steps
        `compute N` and `free N`, in order.
    existing_gradient_bytes
        The part of the resident bytes that are gradients of earlier micro-batches, to which the
        step adds; 0 for a step that begins without gradients.
    """

    graph_name: str
    graph_hash: str
    budget_bytes: int
    resident_bytes: int
    peak_bytes: int
    time_ns: int
    base_time_ns: int
    lower_bound_ns: int
    bound_class: str
    status: Status
    stopped_by: Stop
    method: str
    seed: int
    threads: int
    solve_seconds: float
    versions: dict[str, str]
    steps: tuple[str, ...]
    existing_gradient_bytes: int = 0

    def __str__(self) -> str:
        """One line: what the plan is for, what it takes, what it costs."""
        return (
            f"plan of {self.graph_name} by {self.method}: peak {format_bytes(self.peak_bytes)} of "
            f"{format_bytes(self.budget_bytes)}, overhead {format_percent(self.overhead)}, "
            f"{self.status.value}"
        )

    @cached_property
    def schedule(self) -> Schedule:
        """The steps as a `Schedule`."""
        return Schedule.from_text(self.steps)

    @property
    def overhead(self) -> float:
        """(time - time without recomputation) / time without recomputation."""
        if self.base_time_ns <= 0:
            return 0.0
        return (self.time_ns - self.base_time_ns) / self.base_time_ns

    @property
    def gap(self) -> float | None:
        """(time - lower bound) / time of the whole step; None without a bound."""
        if self.lower_bound_ns < 0:
            return None
        if self.time_ns <= 0:
            return 0.0
        return max(0.0, (self.time_ns - self.lower_bound_ns) / self.time_ns)
