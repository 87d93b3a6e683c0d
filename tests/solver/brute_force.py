"""Optima by enumeration: in the base order, and in any order."""

from __future__ import annotations

import heapq
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


def optimum_any_order(graph: Graph, budget_bytes: int) -> int | None:
    """Least time in ns of a schedule in any order within the budget; for graphs of some 7 ops.

    Dijkstra over (ops that have run, tensors in memory), with the rules of `simulate`.
    """
    arrays, ops = graph.arrays, graph.ops
    sizes = arrays.size.tolist()
    room = budget_bytes - graph.resident_bytes
    made = [t for op in ops for t in op.outputs]
    stays = {t for t in made if graph.tensors[t].output}
    start: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    heap: list[tuple[int, int, tuple[frozenset[int], frozenset[int]]]] = [(0, 0, start)]
    least = {start: 0}
    ties = itertools.count(1)
    while heap:
        time, _, state = heapq.heappop(heap)
        if time > least[state]:
            continue
        ran, there = state
        if len(ran) == len(ops):
            return time
        for index, op in enumerate(ops):
            missing = set(arrays.inputs(index).tolist()) - there
            restored = int(arrays.restores[index])
            if restored >= 0 and index not in ran and int(arrays.producer[restored]) in ran:
                missing.discard(restored)  # only a rerun reads it
            if missing or (index in ran and not op.recompute):
                continue
            work = arrays.rerun_workspace if index in ran else arrays.workspace
            during = sum(sizes[t] for t in (*there, *op.outputs)) + int(work[index])
            present = there | set(op.outputs)
            # What the op need not hold if it is freed right after: what it overwrites or spares.
            saved = {t: sizes[t] for t in op.outputs if arrays.spare[t] and t not in there}
            if arrays.credit[index]:
                saved[int(arrays.overwrites[index])] = int(arrays.credit[index])
            if during - sum(saved.values()) > room:
                continue
            droppable = [t for t in present if t not in stays]
            for k in range(len(droppable) + 1):
                for gone in itertools.combinations(droppable, k):
                    if during - sum(saved.get(t, 0) for t in gone) > room:
                        continue
                    after = (ran | {index}, present - set(gone))
                    if time + op.time_ns < least.get(after, time + op.time_ns + 1):
                        least[after] = time + op.time_ns
                        heapq.heappush(heap, (time + op.time_ns, next(ties), after))
    return None
