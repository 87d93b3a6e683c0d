"""Where a partitioner's plans come from, but for the budget that it has itself.

Plans for budgets that are not the user's are made once, and are the same in every later call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...solver.assemble import Origin, assemble
from ...solver.errors import CaptureError, InfeasibleError, NoPlanError
from ...solver.graph import Graph
from ...solver.plan import Plan
from ...solver.schedule import Schedule
from ...solver.simulate import simulate
from ..plan_cache import plan_key, solve_cached

if TYPE_CHECKING:
    from ..plan_cache import Solving

Planner = Callable[[Graph, int], Plan]  # a joint graph and the user's budget in, a plan out

_made: dict[str, Plan | int | None] = {}  # by key: a plan, or the smallest budget that is named


def keep_everything(graph: Graph, budget_bytes: int) -> Plan:
    """The plan without recomputation; nothing is searched."""
    base = simulate(graph, Schedule.keep_everything(graph))
    origin = Origin("auto", 0, 1, 0.0, lower_bound_ns=base.time_ns)
    return assemble(graph, base.peak_bytes, range(len(graph.ops)), origin)


def given(plan: Plan) -> Planner:
    """What gives a plan that was made before.

    Raises
    ------
    CaptureError
        If it is asked for another graph: tracing the same model again gave other operators.
    """

    def planner(graph: Graph, budget_bytes: int) -> Plan:
        if graph.structure_hash != plan.graph_hash:
            raise CaptureError(
                f"torch.compile: {graph.name} is not the graph that was planned: the model has "
                "several joint graphs in one, or is traced differently each time"
            )
        return plan

    return planner


def plan_for(graph: Graph, budget_bytes: int, settings: Solving, above: Plan) -> Plan | None:
    """The plan for a budget, or, if that is too small, for the smallest one that is found.

    It is made once: kept on disk, and in memory where that fails. Refusals are kept in memory.

    Parameters
    ----------
    graph, budget_bytes, settings
        What to solve.
    above
        A plan for a larger budget: a start and a bound.

    Returns
    -------
    Plan or None
        None where no plan below `above` is found.
    """
    for _ in range(2):  # once more, for the budget that a refusal names
        key = plan_key(graph, budget_bytes, settings)
        if key not in _made:
            try:
                _made[key], _ = solve_cached(
                    graph, budget_bytes, settings, start=above,
                    lower_bound_ns=max(0, above.lower_bound_ns),
                )  # fmt: skip
            except (InfeasibleError, NoPlanError) as error:
                _made[key] = error.smallest_bytes
        made = _made[key]
        if isinstance(made, Plan):
            return made
        if made is None or not budget_bytes < made < above.budget_bytes:
            return None
        budget_bytes = made
    return None
