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

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from ..realise import Tables, realise_nested
from .base import Candidate, choose, evaluate, forward_sizes, narrow_positions, points
from .sqrt_n import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..graph import Graph
    from ..schedule import Schedule

BRANCHES = (1, 2, 3, 4, 6, 8, 12, 16)


def log_n(graph: Graph, budget_bytes: int | None) -> Schedule | None:
    """Best recursive checkpointing within the budget, else the one with the smallest peak.

    Parameters
    ----------
    graph
        Any graph; without a backward phase everything is kept.
    budget_bytes
        Upper bound on the peak, resident bytes included; None asks for the smallest peak.
    """
    tables = Tables.of(graph)
    found = [evaluate(graph, range(len(graph.ops)))]
    if 0 < tables.boundary < len(graph.ops):
        for positions in (range(1, tables.boundary), narrow_positions(graph, tables)):
            for branches in BRANCHES[:: 1 if points(graph, 24) == 24 else 3]:
                found.extend(_depths(graph, tables, positions, branches))
    return choose(found, budget_bytes)


def recursive(
    graph: Graph, tables: Tables, positions: Sequence[int], branches: int, depth: int
) -> tuple[Candidate, int]:
    """Checkpoint with `branches` borders a level, `depth` levels deep.

    Returns
    -------
    Candidate, int
        What comes out, and the number of leaves.
    """
    borders, stored = subdivide(forward_sizes(graph), positions, branches, depth)
    leaf_of = leaves(borders, tables.boundary)
    return evaluate(graph, realise_nested(graph, leaf_of, stored, tables=tables)), len(stored)


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
    weight = [0, *accumulate(size + 1 for size in sizes)]  # + 1: ops of zero bytes count too
    starts: list[int] = []
    paths: list[tuple[int, ...]] = []

    def split(low: int, high: int, level: int, path: tuple[int, ...]) -> None:
        inside = positions[bisect_left(positions, low + 1) : bisect_left(positions, high)]
        if level == 0 or not inside:
            starts.append(low)
            paths.append(path)
            return
        cuts = {
            _nearest(
                inside, weight, weight[low] + (weight[high] - weight[low]) * i // (branches + 1)
            )
            for i in range(1, branches + 1)
        }
        edges = [low, *sorted(cuts), high]
        for i in range(len(edges) - 1):
            split(edges[i], edges[i + 1], level - 1, path + tuple(edges[1 : i + 1]))

    split(0, len(sizes), depth, ())
    number = {start: leaf for leaf, start in enumerate(starts)}
    return starts[1:], [tuple(number[p] for p in path) for path in paths]


def _nearest(inside: Sequence[int], weight: Sequence[int], target: int) -> int:
    """Position of `inside` whose weight is nearest to `target`."""
    place = bisect_left(inside, target, key=weight.__getitem__)
    around = inside[max(0, place - 1) : place + 1]
    return min(around, key=lambda p: abs(weight[p] - target))


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
