"""The state of a plan in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..solver.plan import Stop

if TYPE_CHECKING:
    from ..solver.plan import Plan


def status_words(plan: Plan) -> str:
    """`optimal`, or `feasible` with why the search ended."""
    if plan.stopped_by is Stop.DONE:
        return plan.status.value
    return f"{plan.status.value} ({plan.stopped_by.value})"
