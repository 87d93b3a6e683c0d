"""A plan in words and as a JSON document, the same in every subcommand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..report.words import status_words
from ..solver.assemble import BASE_ORDER_CLASS
from ..solver.plan import Status
from ..solver.units import format_percent

if TYPE_CHECKING:
    from ..report.scale import Scale
    from ..solver.plan import Plan


def plan_rows(plan: Plan, scale: Scale) -> list[tuple[str, str]]:
    """Name and value of everything worth knowing of a plan."""
    ran = plan.schedule.computes()
    extra = scale.time(max(0, plan.step_ns - plan.base_step_ns))
    base = scale.time(plan.base_step_ns)
    bound = "none"
    if plan.gap is not None:
        bound = f"{format_percent(plan.overhead_bound or 0.0)}, gap {format_percent(plan.gap)}"
    return [
        ("graph", plan.graph_name),
        ("method", plan.method),
        ("budget", scale.memory(plan.budget_bytes)),
        ("peak", scale.memory(plan.peak_bytes)),
        ("without recomputation", scale.memory(scale.base_peak_bytes)),
        ("resident", scale.memory(plan.resident_bytes)),
        *_gradient_rows(plan, scale),
        (
            "overhead",
            f"{format_percent(plan.overhead)} ({extra} on {base})",
        ),
        ("lower bound", bound),
        *_bound_rows(plan),
        ("status", status_words(plan)),
        ("recomputations", f"{plan.schedule.recomputes():,} of {len(ran):,} executions"),
        ("solved in", f"{plan.solve_seconds:.1f} s"),
    ]


def _bound_rows(plan: Plan) -> list[tuple[str, str]]:
    """Which schedules the bound speaks of, where the plan is not one of the captured order."""
    if plan.gap is None or plan.status is Status.OPTIMAL or plan.bound_class == BASE_ORDER_CLASS:
        return []
    return [("bound holds for", plan.bound_words)]


def _gradient_rows(plan: Plan, scale: Scale) -> list[tuple[str, str]]:
    """Whether the step begins with gradients, and what a plan that assumes none would then take."""
    if plan.existing_gradient_bytes:
        held = scale.size(plan.existing_gradient_bytes)
        return [("gradients", f"existing ones are added to: {held} of the resident bytes")]
    if not scale.gradient_bytes:
        return []
    most = scale.memory(plan.peak_bytes + scale.gradient_bytes)
    return [
        (
            "gradients",
            f"none at the start; if steps add to existing ones, the peak is up to {most}: "
            "capture with --accumulate for a plan that counts them",
        )
    ]


def plan_document(plan: Plan, scale: Scale) -> dict[str, Any]:
    """The same for programs."""
    return {
        "graph": plan.graph_name,
        "graph_hash": plan.graph_hash,
        "method": plan.method,
        "status": plan.status.value,
        "stopped_by": plan.stopped_by.value,
        **scale.document("budget", plan.budget_bytes),
        **scale.document("peak", plan.peak_bytes),
        **scale.document("base_peak", scale.base_peak_bytes),
        **scale.document("resident", plan.resident_bytes),
        "existing_gradient_bytes": plan.existing_gradient_bytes,
        "time_ns": plan.time_ns,
        "base_time_ns": plan.base_time_ns,
        "step_ns": plan.step_ns,
        "base_step_ns": plan.base_step_ns,
        "lower_bound_ns": plan.lower_bound_ns if plan.lower_bound_ns >= 0 else None,
        "overhead": plan.overhead,
        "overhead_bound": plan.overhead_bound,
        "gap": plan.gap,
        "executions": len(plan.schedule.computes()),
        "recomputations": plan.schedule.recomputes(),
        "seed": plan.seed,
        "threads": plan.threads,
        "solve_seconds": plan.solve_seconds,
        "versions": plan.versions,
    }
