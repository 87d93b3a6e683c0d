"""The state of a plan, and the names of the methods, in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..solver.plan import Stop

if TYPE_CHECKING:
    from ..solver.plan import Plan

# What a reader is told, where the command line and the files say the name of the option.
LABELS = {
    "auto": "lowtide", "keep_everything": "keep everything", "per_block": "checkpoint per block",
    "sqrt_n": "sqrt(n)", "log_n": "log(n)",
}  # fmt: skip


def status_words(plan: Plan) -> str:
    """`optimal`, or `feasible` with why the search ended."""
    if plan.stopped_by is Stop.DONE:
        return plan.status.value
    return f"{plan.status.value} ({plan.stopped_by.value})"


def label_of(method: str) -> str:
    """The method in words for readers; its own name where it has no others."""
    return LABELS.get(method, method)
