"""Makes the module that replays a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..solver.check import check_peak, check_schedule
from ..solver.errors import CheckError
from ..solver.units import format_bytes
from .module import ReplayModule, build_module

if TYPE_CHECKING:
    from ..frontends.torch.captured import Captured
    from ..solver.plan import Plan


def replay(captured: Captured, plan: Plan) -> ReplayModule:
    """A drop-in module that trains by `plan`.

    Parameters
    ----------
    captured
        The captured step. Its model is wrapped, not copied: both share their parameters.
    plan
        A plan for `captured.graph`, as `solve` returns or a file holds it.

    Raises
    ------
    CheckError
        If the plan is for another step, breaks a rule, or would exceed its budget on this graph.
    ReplayError
        If the plan can be checked and not be run.
    """
    check_schedule(captured.graph, plan)
    peak = check_peak(captured.graph, plan.steps)
    if peak > plan.budget_bytes:
        raise CheckError(
            f"the plan reaches {format_bytes(peak)} ({peak} B) on this step, above its budget of "
            f"{format_bytes(plan.budget_bytes)} ({plan.budget_bytes} B): solve again"
        )
    return build_module(captured, plan)
