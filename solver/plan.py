"""A plan: a schedule with all that is needed to trust it."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import msgspec

from .calibration import Calibration, gap, overhead, step_ns
from .schedule import Schedule
from .units import format_bytes, format_more, format_percent


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
    base_order_bound_ns
        What none in the base order is faster than, where the plan, in another order, is; else -1.
    steps
        `compute N` and `free N`, in order.
    existing_gradient_bytes
        The part of the resident bytes that are gradients of earlier micro-batches, to which the
        step adds; 0 for a step that begins without gradients.
    calibration
        That of the graph: what turns sums of op times, which all times above are, into times of
        steps. None: they are the same.
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
    calibration: Calibration | None = None
    base_order_bound_ns: int = -1

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
        """(step time - step time without recomputation) / step time without recomputation."""
        return overhead(self.time_ns, self.base_time_ns, self.calibration)

    @property
    def overhead_bound(self) -> float | None:
        """The overhead at the lower bound; None without one."""
        if self.lower_bound_ns < 0 or self.base_time_ns <= 0:
            return None
        return max(0.0, overhead(self.lower_bound_ns, self.base_time_ns, self.calibration))

    @property
    def bound_words(self) -> str:
        """The schedules that the bound speaks of, and what is known of the base order beside it."""
        if self.base_order_bound_ns < 0:
            return self.bound_class
        least = overhead(self.base_order_bound_ns, self.base_time_ns, self.calibration)
        return (
            f"{self.bound_class}; in the base order none has less than {format_percent(least)} "
            "overhead"
        )

    @property
    def overhead_over_plain(self) -> float | None:
        """(step time - time of plain PyTorch) / time of plain PyTorch; None if not measured."""
        return self._beyond_plain(self.time_ns)

    @property
    def bound_over_plain(self) -> float | None:
        """The same at the lower bound; None without one or if not measured."""
        return None if self.lower_bound_ns < 0 else self._beyond_plain(self.lower_bound_ns)

    @property
    def expected(self) -> str:
        """What a step is predicted to take, in words, and compared with what."""
        if self.overhead_over_plain is not None:
            return f"{format_more(self.overhead_over_plain)} than plain PyTorch"
        return f"{format_more(self.overhead)} than without recomputation"

    @property
    def measured_step_ns(self) -> int | None:
        """Measured time of the plan's own steps, on the scale of `step_ns`; None if not timed.

        See `lowtide.time_plans`. `step_ns` goes by it, too: the same, but for noise.
        """
        return None if self.calibration is None else self.calibration.measured_ns(self.steps)

    @property
    def measured_overhead(self) -> float | None:
        """`overhead` by the plan's own measured steps; None if they were not timed."""
        step = self.measured_step_ns
        return None if step is None else step / self.base_step_ns - 1.0

    @property
    def measured_over_plain(self) -> float | None:
        """`overhead_over_plain` by the plan's own measured steps; None if not timed."""
        step, calibration = self.measured_step_ns, self.calibration
        if step is None or calibration is None or calibration.plain_ns <= 0:
            return None
        return step / calibration.plain_ns - 1.0

    @property
    def summary(self) -> str:
        """What the plan takes and costs, in words: predicted, measured, and at best."""
        extra = self.measured_over_plain
        extra = self.measured_overhead if extra is None else extra
        told = "" if extra is None else f" (measured {format_more(extra)})"
        known = "no bound is known"
        if self.gap is not None:
            known = f"at most {format_percent(self.gap)} of it above the optimum"
        return (
            f"peak {format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)}; a step is "
            f"predicted to take {self.expected}{told}; {known}"
        )

    @property
    def step_ns(self) -> int:
        """Predicted time of a step."""
        return step_ns(self.time_ns, self.calibration)

    @property
    def base_step_ns(self) -> int:
        """Predicted time of a step without recomputation."""
        return step_ns(self.base_time_ns, self.calibration)

    @property
    def step_bound_ns(self) -> int | None:
        """Time of a step at the lower bound; None without one."""
        return None if self.lower_bound_ns < 0 else step_ns(self.lower_bound_ns, self.calibration)

    def _beyond_plain(self, op_ns: int) -> float | None:
        if self.calibration is None or self.calibration.plain_ns <= 0:
            return None
        return self.calibration.step_ns(op_ns) / self.calibration.plain_ns - 1.0

    @property
    def gap(self) -> float | None:
        """(step time - step time at the lower bound) / step time; None without a bound."""
        if self.lower_bound_ns < 0:
            return None
        return gap(self.time_ns, self.lower_bound_ns, self.calibration)
