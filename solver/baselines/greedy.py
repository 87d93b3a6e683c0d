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
import itertools
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..realise import Tables, saved_array
from .base import Candidate, base_order, choose, evaluate, points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..array_types import Bools, Ints
    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule
    from ..search.evaluate import Arrays

POINTS = 40
HOLDS = (None, 32, 8, 2)
SLOWEST = 3  # times the step without recomputation; longer schedules are not looked at


def greedy(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Cheapest prefix of the drop order within the budget, else the smallest peak found.

    Parameters
    ----------
    graph
        Any graph; without a backward phase everything is kept.
    budget_bytes
        Upper bound on the peak, resident bytes included; None asks for the smallest peak.
    control
        Ends the search early, with the best so far.
    """
    return choose(_prefixes(graph, Tables.of(graph), budget_bytes), budget_bytes, control)


def saved_anyway(tables: Tables) -> Bools:
    """Mask of droppable tensors that live across the boundary when nothing is recomputed."""
    return np.array(
        [
            able and bool(users) and users[-1] >= tables.boundary
            for able, users in zip(tables.droppable, tables.users, strict=True)
        ],
        dtype=np.bool_,
    )


def drop_order(graph: Graph, tables: Tables) -> list[int]:
    """Forward tensors that the backward phase reads, cheapest to recompute per byte first.

    The cost of a tensor is the time of the ops to run for it, given what was dropped before; it
    only grows, so a heap with late updates finds the smallest each time.
    """
    g = tables.arrays
    size = g.size.tolist()
    saved = saved_anyway(tables)
    candidates = [t for t in np.flatnonzero(saved).tolist() if size[t] > 0]
    # Forward tensors that the backward phase does not read are gone by then.
    present = saved | ~np.array(tables.droppable, dtype=np.bool_)
    seen = np.full(len(graph.ops), -1, dtype=np.int64)
    stack = np.empty(len(graph.ops), dtype=np.int64)
    calls = itertools.count()
    heap = [(0.0, t) for t in candidates]  # a bound from below is enough
    order: list[int] = []
    while heap:
        _, t = heapq.heappop(heap)
        limit = heap[0][0] * size[t] if heap else float("inf")
        ratio = _remake(g, present, seen, stack, next(calls), t, limit) / size[t]
        if heap and ratio > heap[0][0]:
            heapq.heappush(heap, (ratio, t))
        else:
            present[t] = False
            order.append(t)
    return order


@njit(cache=True, nogil=True)
def _remake(
    g: Arrays, present: Bools, seen: Ints, stack: Ints, stamp: int, tensor: int, limit: float
) -> int:
    """Time to make `tensor` again, or a part of it above twice `limit`."""
    total = 0
    top = 1
    stack[0] = g.producer[tensor]
    seen[stack[0]] = stamp
    while top > 0 and total <= 2 * limit:  # twice: bounds from below grow in few steps
        top -= 1
        op = stack[top]
        total += g.time[op]
        for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
            t = g.in_idx[i]
            p = g.producer[t]
            if not present[t] and seen[p] != stamp:
                seen[p] = stamp
                stack[top] = p
                top += 1
    return total


def _prefixes(graph: Graph, tables: Tables, budget_bytes: int | None) -> Iterator[Candidate]:
    """Candidates for up to `POINTS` prefixes, then finer around where the budget starts to hold."""
    yield base_order(graph, tables)
    order = np.array(drop_order(graph, tables), dtype=np.int64)
    everything = saved_anyway(tables)
    slowest = SLOWEST * sum(op.time_ns for op in graph.ops)

    def run(dropped: int, hold: int | None) -> Candidate | None:
        saved = everything.copy()
        saved[order[:dropped]] = False
        computes = saved_array(tables, saved, hold=hold, slowest=slowest)
        return evaluate(graph, tables, computes) if len(computes) else None

    count = points(graph, POINTS)
    grid = sorted({round(len(order) * step / count) for step in range(count + 1)})
    for hold in HOLDS:
        before: tuple[int, Candidate] | None = None
        for dropped in grid:
            candidate = run(dropped, hold)
            if candidate is None:
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
                    if between is not None:
                        yield between
                    if between is not None and between.peak_bytes <= budget_bytes:
                        high = middle
                    else:
                        low = middle
            before = (dropped, candidate)
