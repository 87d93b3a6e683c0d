"""Where a partitioner's plans come from, but for the budget that it has itself.

Plans for budgets that are not the user's are made once, and are the same in every later call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ...solver.assemble import Origin, assemble
from ...solver.errors import CaptureError, InfeasibleError, NoPlanError
from ...solver.graph import Graph
from ...solver.plan import Plan
from ...solver.schedule import Schedule
from ...solver.simulate import simulate
from ..plans.plan_cache import plan_key, solve_cached
from .own import Choice, plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plans.plan_cache import Solving

Planner = Callable[[Graph, int], Choice]  # a joint graph and the user's budget in

_made: dict[str, Plan | int | None] = {}  # by key: a plan, or the smallest budget that is named


def keep_everything(graph: Graph, budget_bytes: int) -> Plan:
    """The plan without recomputation; nothing is searched."""
    base = simulate(graph, Schedule.keep_everything(graph))
    origin = Origin("auto", 0, 1, 0.0, lower_bound_ns=base.time_ns)
    return assemble(graph, base.peak_bytes, range(len(graph.ops)), origin)


def given(choice: Choice) -> Planner:
    """What gives a plan, or a split of PyTorch's own, that was made before.

    Raises
    ------
    CaptureError
        If it is asked for another graph: tracing the same model again gave other operators.
    """

    def planner(graph: Graph, budget_bytes: int) -> Choice:
        if graph.structure_hash != plan_of(choice).graph_hash:
            raise CaptureError(
                f"torch.compile: {graph.name} is not the graph that was planned: the model has "
                "several joint graphs in one, or is traced differently each time"
            )
        return choice

    return planner


def plan_for(
    graph: Graph,
    budget_bytes: int,
    settings: Solving,
    above: Plan,
    known: Sequence[Plan] = (),
) -> Plan | None:
    """The plan for a budget, or, if that is too small, for the smallest one that is found.

    It is made once: kept on disk, and in memory where that fails. Refusals are kept in memory.
    Nothing is searched where the plan for the larger budget fits.

    Parameters
    ----------
    graph, budget_bytes, settings
        What to solve.
    above
        A plan for a larger budget: a start and a bound.
    known
        Plans of others. What is returned is no slower than those that fit.

    Returns
    -------
    Plan or None
        None where no plan below `above` is found.
    """
    for _ in range(2):  # once more, for the budget that a refusal names
        best = _fastest(known, budget_bytes)
        key = plan_key(graph, budget_bytes, settings)
        if key not in _made:
            start = above if best is None or above.peak_bytes <= budget_bytes else best
            try:
                _made[key], _ = solve_cached(
                    graph, budget_bytes, settings, start=start,
                    lower_bound_ns=max(0, above.lower_bound_ns),
                    enough=above.peak_bytes <= budget_bytes,
                )  # fmt: skip
            except (InfeasibleError, NoPlanError) as error:
                _made[key] = error.smallest_bytes
        made = _made[key]
        if best is not None and not (isinstance(made, Plan) and made.time_ns <= best.time_ns):
            # A short search may not even have come to what it was given, or was made without it.
            _made[key] = made = msgspec.structs.replace(best, budget_bytes=budget_bytes)
        if isinstance(made, Plan):
            return made
        if made is None or not budget_bytes < made < above.budget_bytes:
            return None
        budget_bytes = made
    return None


def _fastest(plans: Sequence[Plan], budget_bytes: int) -> Plan | None:
    fits = [plan for plan in plans if plan.peak_bytes <= budget_bytes]
    return min(fits, key=lambda plan: (plan.time_ns, plan.peak_bytes), default=None)
