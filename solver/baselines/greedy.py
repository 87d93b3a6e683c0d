"""Drop the tensors that are cheapest to recompute per byte, until the step fits.

The rule is the one of Chen et al. 2016 (section 4.2: drop the results of cheap operators) made
quantitative: cost per byte, as in DTR's heuristic without staleness (Kirisame et al., 2021: c / m
with c the recompute time of the tensor and of its dropped ancestors). Here it is static: candidates
are the forward tensors that the backward phase reads, costs are updated as ancestors are dropped,
and the exact peak after a number of drops comes from the simulation.

A recomputed tensor stays until its last need, or (the other realisations, which reach smaller
peaks) only if its next need is near in the base order. Of all prefixes of the drop order and the
realisations the cheapest within the budget is returned; none takes three times the plain step.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ..realise import Tables, realise_saved
from .base import Candidate, choose, evaluate, points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..graph import Graph
    from ..schedule import Schedule

POINTS = 40
HOLDS = (None, 32, 8, 2)
SLOWEST = 3  # times the step without recomputation; longer schedules are not looked at


def greedy(graph: Graph, budget_bytes: int | None) -> Schedule | None:
    """Cheapest prefix of the drop order within the budget, else the smallest peak found.

    Parameters
    ----------
    graph
        Any graph; without a backward phase everything is kept.
    budget_bytes
        Upper bound on the peak, resident bytes included; None asks for the smallest peak.
    """
    tables = Tables.of(graph)
    return choose(_prefixes(graph, tables, budget_bytes), budget_bytes)


def saved_anyway(tables: Tables) -> set[int]:
    """Droppable tensors that live across the boundary when nothing is recomputed."""
    return {
        t
        for t, able in enumerate(tables.droppable)
        if able and tables.users[t] and tables.users[t][-1] >= tables.boundary
    }


def drop_order(graph: Graph, tables: Tables) -> list[int]:
    """Forward tensors that the backward phase reads, cheapest to recompute per byte first.

    The cost of a tensor is the time of the ops to run for it, given what was dropped before; it
    only grows, so a heap with late updates finds the smallest each time.
    """
    time = [op.time_ns for op in graph.ops]
    size = [tensor.size_bytes for tensor in graph.tensors]
    saved = saved_anyway(tables)
    candidates = [t for t in sorted(saved) if size[t] > 0]
    # Forward tensors that the backward phase does not read are gone by then.
    present = [not able or t in saved for t, able in enumerate(tables.droppable)]

    def cost(tensor: int, limit: float) -> int:
        """Time to recompute `tensor`, or a part of it above twice `limit`."""
        total = 0
        seen = {tables.producer[tensor]}
        stack = [tables.producer[tensor]]
        while stack and total <= 2 * limit:  # twice: bounds from below grow in few steps
            op = stack.pop()
            total += time[op]
            for t in tables.inputs[op]:
                if not present[t] and tables.producer[t] not in seen:
                    seen.add(tables.producer[t])
                    stack.append(tables.producer[t])
        return total

    heap = [(0.0, t) for t in candidates]  # a bound from below is enough
    order: list[int] = []
    while heap:
        _, t = heapq.heappop(heap)
        limit = heap[0][0] * size[t] if heap else float("inf")
        ratio = cost(t, limit) / size[t]
        if heap and ratio > heap[0][0]:
            heapq.heappush(heap, (ratio, t))
        else:
            present[t] = False
            order.append(t)
    return order


def _prefixes(graph: Graph, tables: Tables, budget_bytes: int | None) -> Iterator[Candidate]:
    """Candidates for up to `POINTS` prefixes, then finer around where the budget starts to hold."""
    order = drop_order(graph, tables)
    everything = saved_anyway(tables)

    def run(dropped: int, hold: int | None) -> Candidate:
        saved = everything.difference(order[:dropped])
        return evaluate(graph, realise_saved(graph, saved, hold=hold, tables=tables))

    base_time = sum(op.time_ns for op in graph.ops)
    count = points(graph, POINTS)
    grid = sorted({round(len(order) * step / count) for step in range(count + 1)})
    for hold in HOLDS:
        before: tuple[int, Candidate] | None = None
        for dropped in grid:
            candidate = run(dropped, hold)
            if candidate.time_ns > SLOWEST * base_time:
                break
            yield candidate
            if (
                before is not None
                and budget_bytes is not None
                and candidate.peak_bytes <= budget_bytes < before[1].peak_bytes
            ):
                low, high = before[0], dropped
                while high - low > 1:
                    middle = (low + high) // 2
                    between = run(middle, hold)
                    yield between
                    if between.peak_bytes <= budget_bytes:
                        high = middle
                    else:
                        low = middle
            before = (dropped, candidate)
