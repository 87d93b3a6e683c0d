"""Makes the module that replays a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..solver.check import check_peak, check_schedule
from ..solver.errors import CheckError
from ..solver.units import format_bytes
from .hold import held_back
from .module import ReplayModule, build_module

if TYPE_CHECKING:
    from ..frontends.torch.captured import Captured
    from ..solver.plan import Plan


def in_mode_of(captured: Captured, plan: Plan) -> Captured:
    """The step on existing gradients if that is what `plan` is for, else the step as it is."""
    if plan.graph_hash != captured.graph.structure_hash:
        accumulating = captured.accumulating()
        if plan.graph_hash == accumulating.graph.structure_hash:
            return accumulating
    return captured


def replay(captured: Captured, plan: Plan) -> ReplayModule:
    """A drop-in module that trains by `plan`.

    Parameters
    ----------
    captured
        The captured step. Its model is wrapped, not copied: both share their parameters.
    plan
        A plan for `captured.graph`, as `solve` returns or a file holds it; one for the same step
        on existing gradients will do as well.

    Raises
    ------
    CheckError
        If the plan is for another step, breaks a rule, or would exceed its budget on this graph.
    ReplayError
        If the plan can be checked and not be run.
    """
    captured = in_mode_of(captured, plan)
    check_schedule(captured.graph, plan)
    plan = held_back(captured.program, plan)
    peak = check_peak(captured.graph, plan.steps)
    if peak > plan.budget_bytes:
        raise CheckError(
            f"the plan reaches {format_bytes(peak)} ({peak} B) on this step, above its budget of "
            f"{format_bytes(plan.budget_bytes)} ({plan.budget_bytes} B): solve again"
        )
    return build_module(captured, plan)
