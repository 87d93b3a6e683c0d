"""Recursive checkpointing, O(log n) memory for O(n log n) time: Chen et al. 2016, section 4.4.

A stretch of the forward order is cut into k + 1 parts of about equal bytes whose borders are stored
on the way through it; the backward phase takes the last part first and treats it in the same way,
so that g(n) = k + g(n / (k + 1)) = k log_{k+1} n is held and each level runs the stretch forward
once more. With k = 1 this is recursive halving, a simple relative of the binomial checkpointing of
Griewank & Walther (2000, Algorithm 799), which is optimal on uniform chains.

Deviations: a border holds every tensor made before it and read after it in the forward phase (on
a chain one tensor); parts have equal bytes, not equal numbers of nodes; the depth is cut off and k
is searched, so that the cheapest combination within the budget is returned.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..realise import Tables, nested_array
from .base import Candidate, base_order, choose, evaluate, forward_sizes, narrow_positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..array_types import Ints
    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule

BRANCHES = (1, 2, 3, 4, 6, 8, 12, 16)


def log_n(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best recursive checkpointing within the budget, else the one with the smallest peak.

    Parameters
    ----------
    graph
        Any graph; without a backward phase everything is kept.
    budget_bytes
        Upper bound on the peak, resident bytes included; None asks for the smallest peak.
    control
        Ends the search early, with the best so far.
    """
    return choose(_candidates(graph), budget_bytes, control)


def _candidates(graph: Graph) -> Iterator[Candidate]:
    tables = Tables.of(graph)
    yield base_order(graph, tables)
    if 0 < tables.boundary < len(graph.ops):
        for positions in (narrow_positions(graph, tables), range(1, tables.boundary)):
            for branches in BRANCHES:
                yield from _depths(graph, tables, positions, branches)


def recursive(
    graph: Graph, tables: Tables, positions: Sequence[int], branches: int, depth: int
) -> tuple[Candidate, int]:
    """Checkpoint with `branches` borders a level, `depth` levels deep.

    Returns
    -------
    Candidate, int
        What comes out, and the number of leaves.
    """
    weight, inside = _weights(forward_sizes(graph)), np.array(positions, dtype=np.int64)
    starts, pointer, path = _subdivide(weight, inside, branches, depth)
    leaf_of = np.zeros(tables.boundary, dtype=np.int64)
    leaf_of[starts[1:]] = 1
    leaf_of = np.cumsum(leaf_of)
    stored = np.searchsorted(starts, path)
    computes = nested_array(tables, leaf_of, pointer, stored)
    return evaluate(graph, tables, computes), len(starts)


def subdivide(
    sizes: Sequence[int], positions: Sequence[int], branches: int, depth: int
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Cut the forward order recursively into `branches + 1` parts of about equal bytes.

    Returns
    -------
    list of int
        All borders, as positions in the forward order, ascending.
    list of tuple of int
        Per leaf: numbers of the leaves before which a border is stored while it is worked on.
    """
    inside = np.array(positions, dtype=np.int64)
    starts, pointer, path = _subdivide(_weights(sizes), inside, branches, depth)
    stored = np.searchsorted(starts, path).tolist()
    return starts[1:].tolist(), [tuple(stored[a:b]) for a, b in pairwise(pointer.tolist())]


def _weights(sizes: Sequence[int]) -> Ints:
    """Bytes made before each position, and one for each op: ops of zero bytes count too."""
    weight = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(np.array(sizes, dtype=np.int64) + 1, out=weight[1:])
    return weight


@njit(cache=True, nogil=True)
def _subdivide(weight: Ints, positions: Ints, branches: int, depth: int) -> tuple[Ints, Ints, Ints]:
    """Start of each leaf, and the borders stored for leaf j: `path[pointer[j]:pointer[j + 1]]`."""
    count = len(weight) - 1
    starts = np.empty(count, dtype=np.int64)
    pointer = np.zeros(count + 1, dtype=np.int64)
    path = np.empty(16 * count + 16, dtype=np.int64)
    way = np.empty(count + 1, dtype=np.int64)  # borders on the way to the current part
    # Parts still to do, the first on top: low, high, levels left, borders on the way.
    todo = np.empty((count + 1, 4), dtype=np.int64)
    edges = np.empty(branches + 2, dtype=np.int64)
    todo[0] = np.array([0, count, depth, 0])
    top, leaves, written = 1, 0, 0
    while top > 0:
        top -= 1
        low, high, level, length = todo[top]
        if length > 0:
            way[length - 1] = low
        first = np.searchsorted(positions, low + 1)
        last = np.searchsorted(positions, high)
        if level == 0 or first >= last:
            if written + length > len(path):
                longer = np.empty(2 * len(path) + length, dtype=np.int64)
                longer[:written] = path[:written]
                path = longer
            path[written : written + length] = way[:length]
            written += length
            starts[leaves] = low
            leaves += 1
            pointer[leaves] = written
            continue
        cuts = 0
        edges[0] = low
        place = first
        for i in range(1, branches + 1):
            target = weight[low] + (weight[high] - weight[low]) * i // (branches + 1)
            while place < last and weight[positions[place]] < target:
                place += 1
            near = min(place, last - 1)
            if near > first and target - weight[positions[near - 1]] <= abs(
                weight[positions[near]] - target
            ):
                near -= 1
            if positions[near] > edges[cuts]:
                cuts += 1
                edges[cuts] = positions[near]
        edges[cuts + 1] = high
        for i in range(cuts, -1, -1):
            todo[top, 0], todo[top, 1] = edges[i], edges[i + 1]
            todo[top, 2], todo[top, 3] = level - 1, length + i
            top += 1
    return starts[:leaves].copy(), pointer[: leaves + 1].copy(), path[:written].copy()


def _depths(
    graph: Graph, tables: Tables, positions: Sequence[int], branches: int
) -> Iterator[Candidate]:
    """Candidates of growing depth, until no leaf is split any more."""
    leaf_count = 1
    for depth in range(1, tables.boundary + 1):
        candidate, count = recursive(graph, tables, positions, branches, depth)
        if count == leaf_count:
            return
        leaf_count = count
        yield candidate
