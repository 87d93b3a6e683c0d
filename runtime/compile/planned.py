"""What a compiled joint graph was split by."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ...solver.graph import Graph
    from ...solver.plan import Plan


class Planned(NamedTuple):
    """A joint graph that was compiled.

    Attributes
    ----------
    graph, plan
        What was solved, and the plan.
    budget_bytes
        What was asked for; the plan's own budget is smaller by what is reserved.
    resident_bytes
        The part of the graph's resident bytes that is there without the compiler.
    tangents
        How many inputs of the backward come from its caller.
    peak_bytes
        Peak of what the compiler made of it, resident bytes included; None where not known.
    share
        Where the split is PyTorch's own: under which `activation_memory_budget`. `plan` then is
        the same values in another order.
    program
        SHA-256 of what inductor wrote; empty where that is no Python.
    """

    graph: Graph
    plan: Plan
    budget_bytes: int
    resident_bytes: int
    tangents: int
    peak_bytes: int | None = None
    share: float | None = None
    program: str = ""
