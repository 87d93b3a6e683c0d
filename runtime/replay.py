"""Makes the module that replays a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..solver.check import check_peak, check_schedule
from ..solver.errors import CheckError, ReplayError
from ..solver.schedule import Schedule
from ..solver.simulate import simulate
from ..solver.units import format_bytes, parse_budget
from .module import ReplayModule, build_module
from .step.hold import held_back

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


def replay(
    captured: Captured, plan: Plan, *, arena: bool = False, budget: str | int | None = None
) -> ReplayModule:
    """A drop-in module that trains by `plan`.

    Parameters
    ----------
    captured
        The captured step. Its model is wrapped, not copied: both share their parameters.
    plan
        A plan for `captured.graph`, as `solve` returns or a file holds it; one for the same step
        on existing gradients will do as well.
    arena
        Put what the step makes and uses up into one buffer, at addresses fixed beforehand. Held
        from the start of forward to the end of backward, it cannot fragment; outputs, gradients
        and results of operators that take no `out=` are allocated as ever. See `Arena`. All of
        it counts, so the peak is higher than the plan's: plan for less than you have.
    budget
        What the step may take with the arena, as `solve` takes it; the plan's own by default.

    Raises
    ------
    CheckError
        If the plan is for another step, breaks a rule, or would exceed its budget on this graph.
    ReplayError
        If the plan can be checked and not be run, or exceeds its budget with the arena.

    Notes
    -----
    A replayed step is not for capture as a CUDA graph. Generator states are read and set around
    draws that run again, which a graph cannot hold, and guards and questions about the batch are
    asked in Python in each call, which a graph would ask once. Gradients leave in stages, so that
    hooks of DDP and FSDP run in between.
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
    module = build_module(captured, plan, arena=arena)
    limit = plan.budget_bytes
    if budget is not None:
        graph = captured.graph
        whole = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
        limit = parse_budget(budget, resident_bytes=graph.resident_bytes, peak_bytes=whole)
        if limit < peak:
            raise ReplayError(
                f"the plan reaches {format_bytes(peak)} ({peak} B), above the budget of {limit} B: "
                "solve again"
            )
    if module.peak_bytes > max(peak, limit):
        raise ReplayError(
            f"with the arena the plan reaches {format_bytes(module.peak_bytes)} "
            f"({module.peak_bytes} B), above the budget of {limit} B: if there is as much, pass "
            f"budget={module.peak_bytes}; else plan for less and name the whole budget here"
        )
    return module
