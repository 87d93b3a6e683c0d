"""Optimum by enumeration: every set of recomputations before every op of the base order."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lowtide.solver.errors import CheckError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


def optimum(graph: Graph, budget_bytes: int) -> int | None:
    """Least time in ns of a schedule within the budget, or None; for graphs of up to 6 ops."""
    count = len(graph.ops)
    best: int | None = None
    choices = []
    for base in range(count):
        earlier = [op for op in range(base) if graph.ops[op].recompute]
        choices.append(
            [c for k in range(len(earlier) + 1) for c in itertools.combinations(earlier, k)]
        )
    for picked in itertools.product(*choices):
        time = sum(op.time_ns for op in graph.ops)
        time += sum(graph.ops[op].time_ns for group in picked for op in group)
        if best is not None and time >= best:
            continue
        computes = [op for base, group in enumerate(picked) for op in (*group, base)]
        try:
            result = simulate(graph, Schedule.from_computes(graph, computes))
        except CheckError:
            continue
        if result.peak_bytes <= budget_bytes:
            best = time
    return best
