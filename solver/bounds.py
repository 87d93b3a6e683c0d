"""What lower bounds tell of other budgets: what no schedule beats holds at every smaller budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .assemble import ANY_ORDER_CLASS, Origin, assemble
from .plan import Status, Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .comparison import Row
    from .graph import Graph
    from .plan import Plan


def proven(plan: Plan) -> tuple[int, int]:
    """Nanoseconds that no schedule in any order, and none in the base order, undercuts.

    -1 where nothing is known. What holds in any order holds in the base order too, and not the
    other way round.
    """
    any_ns = plan.lower_bound_ns if plan.bound_class == ANY_ORDER_CLASS else -1
    return any_ns, max(plan.lower_bound_ns, plan.base_order_bound_ns)


def claims(plan: Plan, any_order_ns: int, bound_ns: int) -> bool:
    """Whether a plan claims all that is known in any order and in the base order already."""
    if plan.base_order_bound_ns >= 0 and plan.lower_bound_ns < min(any_order_ns, plan.time_ns):
        return False
    return proven(plan)[1] == bound_ns


def carry(graph: Graph, rows: Sequence[Row], gap: float, backend: str = "") -> list[Row]:
    """Rows with the bounds that their method proved at larger budgets, in the same order.

    Rows without a bound stay as they are, and so does what each method proved by itself: bounds of
    one method are not told of another.
    """
    carried = list(rows)
    best: dict[str, tuple[int, int]] = {}
    for place in sorted(range(len(rows)), key=lambda place: -rows[place].budget_bytes):
        row, plan = rows[place], rows[place].plan
        if plan is None or plan.lower_bound_ns < 0:
            continue
        known, own = best.get(row.method, (-1, -1)), proven(plan)
        any_ns, base_ns = (max(pair) for pair in zip(known, own, strict=True))
        best[row.method] = any_ns, base_ns
        if (any_ns, base_ns) == own:
            continue
        told = Origin(
            plan.method, plan.seed, plan.threads, plan.solve_seconds, plan.stopped_by, base_ns, gap,
            backend, any_ns,
        )  # fmt: skip
        new = assemble(graph, row.budget_bytes, plan.schedule.computes(), told)
        if new.lower_bound_ns <= plan.lower_bound_ns:
            continue
        if new.status is Status.OPTIMAL and new.stopped_by is Stop.TIME_LIMIT:
            told = replace(told, stopped_by=Stop.DONE)
            new = assemble(graph, row.budget_bytes, plan.schedule.computes(), told)
        ended = "" if new.stopped_by is Stop.DONE else new.stopped_by.value
        carried[place] = replace(row, plan=new, status=new.status.value, reason=ended)
    return carried
