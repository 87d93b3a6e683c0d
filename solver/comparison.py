"""Rows of a comparison: one method at one budget, with or without a plan."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Plan  # noqa: TC001  stored rows are read by their types

INFEASIBLE = "infeasible"
NO_PLAN = "no plan in time"
NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Row:
    """One method at one budget.

    Attributes
    ----------
    method, budget, budget_bytes
        What was asked for; `budget` as it was written.
    status
        `optimal` or `feasible` with a plan; `infeasible`, `no plan in time` or `not applicable`
        (the method finds nothing to work on in this graph) without.
    plan
        The plan; None if there is none.
    seconds
        Time the method took.
    reason
        Why there is no plan, or why the search ended early; empty otherwise.
    smallest_bytes, limiting_op, proven
        For `infeasible`: the smallest budget for which the method found a schedule, the op that
        sets it, and whether none of its class can meet the budget.
    """

    method: str
    budget: str
    budget_bytes: int
    status: str
    plan: Plan | None
    seconds: float
    reason: str = ""
    smallest_bytes: int | None = None
    limiting_op: str | None = None
    proven: bool = False

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak, resident bytes included."""
        return None if self.plan is None else self.plan.peak_bytes

    @property
    def overhead(self) -> float | None:
        """Extra time as a fraction of the time without recomputation."""
        return None if self.plan is None else self.plan.overhead

    @property
    def bound(self) -> float | None:
        """Lower bound on the overhead; None if nothing is known."""
        return None if self.plan is None else self.plan.overhead_bound

    @property
    def gap(self) -> float | None:
        """`Plan.gap`; None without a plan or a bound."""
        return None if self.plan is None else self.plan.gap


@dataclass(frozen=True)
class Comparison:
    """All rows, budgets in the order asked for, methods within each.

    Attributes
    ----------
    graph_name, graph_hash, size_unit, time_unit
        The graph compared on.
    resident_bytes, base_peak_bytes, base_time_ns
        Memory that is always taken, and peak and time without recomputation.
    rows
        One for every pair of budget and method that was run.
    interrupted
        True if Ctrl-C ended the comparison before all rows were run.
    """

    graph_name: str
    graph_hash: str
    size_unit: str
    time_unit: str
    resident_bytes: int
    base_peak_bytes: int
    base_time_ns: int
    rows: tuple[Row, ...]
    interrupted: bool = False
