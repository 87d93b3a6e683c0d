"""From a sequence of executions to a checked plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .check import check
from .incumbent import keeps_order
from .plan import Plan, Status, Stop
from .schedule import Schedule
from .simulate import simulate
from .version import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph import Graph

ANY_ORDER_CLASS = "all schedules"
BASE_ORDER_CLASS = (
    "schedules that run every op first in the base order, and again at most once, in the same"
    " order, between two ops of that order"
)


@dataclass(frozen=True)
class Origin:
    """How a plan came about: what `Plan` records beside the schedule."""

    method: str
    seed: int
    threads: int
    seconds: float
    stopped_by: Stop = Stop.DONE
    lower_bound_ns: int = -1
    gap: float = 0.0
    backend: str = ""
    any_order_ns: int = 0  # no schedule in any order is faster


def assemble(graph: Graph, budget_bytes: int, computes: Sequence[int], origin: Origin) -> Plan:
    """Simulate, wrap and check.

    A schedule in another order may be faster than the bound, which speaks of the base order. The
    plan then claims what holds for every schedule: the bound in any order, and at least the time
    without recomputation; beside it stands what is known of the base order. Other schedules outside
    the class (an op run twice between two others) claim their own time.

    Raises
    ------
    CheckError
        If the schedule breaks a rule or the budget: a defect of the method that made it.
    """
    schedule = Schedule.from_computes(graph, computes)
    simulation = simulate(graph, schedule)
    base = sum(op.time_ns for op in graph.ops)
    bound, bound_class = (
        origin.lower_bound_ns,
        "" if origin.lower_bound_ns < 0 else BASE_ORDER_CLASS,
    )
    in_base_order = -1
    if bound > simulation.time_ns and not keeps_order(computes):
        in_base_order, bound_class = bound, ANY_ORDER_CLASS
        bound = max(base, origin.any_order_ns)
    elif bound == base:
        bound_class = ANY_ORDER_CLASS
    bound = min(bound, simulation.time_ns)
    near = bound >= 0 and simulation.time_ns - bound <= origin.gap * simulation.time_ns
    packages = ["numpy", "numba"]
    packages += {"highs": ["highspy"], "cpsat": ["ortools"]}.get(origin.backend, [])
    packages += [p for p in ("ortools", "pulp") if origin.backend.startswith(p)]
    plan = Plan(
        graph_name=graph.name,
        graph_hash=graph.structure_hash,
        budget_bytes=budget_bytes,
        resident_bytes=graph.resident_bytes,
        peak_bytes=simulation.peak_bytes,
        time_ns=simulation.time_ns,
        base_time_ns=base,
        lower_bound_ns=bound,
        bound_class=bound_class,
        status=Status.OPTIMAL if near else Status.FEASIBLE,
        stopped_by=origin.stopped_by,
        method=origin.method,
        seed=origin.seed,
        threads=origin.threads,
        solve_seconds=round(origin.seconds, 3),
        versions=versions(*packages),
        steps=schedule.to_text(),
        existing_gradient_bytes=graph.existing_gradient_bytes,
        calibration=graph.calibration,
        base_order_bound_ns=in_base_order,
    )
    check(graph, plan)
    return plan
