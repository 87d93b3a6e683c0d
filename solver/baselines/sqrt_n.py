"""Segment checkpointing, O(sqrt n) memory: Chen et al. 2016 (arXiv 1604.06174), Algorithm 3.

The forward order is cut into segments; what crosses a border is kept, the inside of a segment is
recomputed when the backward phase enters it. Algorithm 3 walks the order, adds up the bytes made
since the last border and places a border at the next candidate once they exceed B; B is searched
around sqrt(x y), where B = 0 gives x bytes kept between segments and y in the largest (appendix A).

Deviations, needed for general graphs or because they only help:

* A border keeps every tensor made before it and read after it in the forward phase, not one node.
* Candidates (the set C of the paper) are all positions, or only the narrow ones, where no fewer
  bytes cross just before or after (on a chain of blocks: the outputs of the blocks).
* The last segment is not dropped: it would be recomputed at once (as `checkpoint_sequential` does).
* Recomputation is lazy: of a segment only what the backward phase asks for is computed again.
* B runs over a fine grid from the largest op to the whole forward phase beside the
  paper's six values; of the segmentations that differ the cheapest within the budget wins. Where
  they are too many to simulate all, bisection at the border of the budget follows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..realise import Tables, border_tensors, saved_array
from .base import (
    Candidate,
    base_order,
    choose,
    evaluate,
    forward_sizes,
    narrow_positions,
    points,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..array_types import Bools, Ints
    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule

MOST = 128  # segmentations simulated for each set of candidates
FINER = 8  # values of B tried for each of them
BISECTIONS = 6


def sqrt_n(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best segment checkpointing within the budget, else the one with the smallest peak.

    Parameters
    ----------
    graph
        Any graph; without a backward phase everything is kept.
    budget_bytes
        Upper bound on the peak, resident bytes included; None asks for the smallest peak.
    control
        Ends the search early, with the best so far.
    """
    return choose(_candidates(graph, budget_bytes), budget_bytes, control)


def _candidates(graph: Graph, budget_bytes: int | None) -> Iterator[Candidate]:
    tables = Tables.of(graph)
    yield base_order(graph, tables)
    if 0 < tables.boundary < len(graph.ops):
        for positions in (narrow_positions(graph, tables), range(1, tables.boundary)):
            yield from _search(graph, tables, positions, budget_bytes)


def segment(sizes: Sequence[int], positions: Sequence[int], limit: float) -> tuple[int, ...]:
    """Algorithm 3: borders such that a segment ends at the first candidate above `limit` bytes.

    Parameters
    ----------
    sizes
        Bytes made by each forward op.
    positions
        Candidate borders, ascending; border p lies before op p.
    limit
        B of the paper, in bytes.
    """
    allowed = np.zeros(len(sizes), dtype=np.bool_)
    allowed[list(positions)] = True
    return tuple(_segment(np.array(sizes, dtype=np.int64), allowed, float(limit)).tolist())


@njit(cache=True, nogil=True)
def _segment(sizes: Ints, allowed: Bools, limit: float) -> Ints:
    borders = np.empty(len(sizes), dtype=np.int64)
    count = 0
    held = 0
    for op in range(len(sizes)):
        if allowed[op] and held > limit:
            borders[count] = op
            count += 1
            held = 0
        held += sizes[op]
    return borders[:count].copy()


def leaves(borders: Sequence[int], count: int) -> list[int]:
    """Segment of each of `count` forward ops."""
    result = [0] * count
    for number, (start, end) in enumerate(pairwise([0, *borders, count])):
        result[start:end] = [number] * (end - start)
    return result


def checkpoint(graph: Graph, tables: Tables, borders: Sequence[int]) -> Candidate:
    """Keep what crosses `borders` and the last segment; recompute the rest once."""
    leaf_of = leaves(borders, tables.boundary)
    saved = border_tensors(tables, leaf_of)
    first = borders[-1] if len(borders) else 0
    producer = tables.arrays.producer
    saved |= (first <= producer) & (producer < tables.boundary)
    return evaluate(graph, tables, saved_array(tables, saved))


def _search(
    graph: Graph, tables: Tables, positions: Sequence[int], budget_bytes: int | None
) -> Iterator[Candidate]:
    """Candidates of the grid over B, and of the bisection where the grid had to be thinned out."""
    sizes = forward_sizes(graph)
    as_array = np.array(sizes, dtype=np.int64)
    allowed = np.zeros(len(sizes), dtype=np.bool_)
    allowed[list(positions)] = True
    seen: dict[bytes, Candidate] = {}

    def run(limit: float) -> Candidate:
        borders = _segment(as_array, allowed, limit)
        key = borders.tobytes()
        if key not in seen:
            seen[key] = checkpoint(graph, tables, borders.tolist())
        return seen[key]

    most = points(graph, MOST)
    paper = [0.0, *_paper_grid(sizes, positions)]
    grid = sorted([*paper, *_fine_grid(sizes, FINER * most)])
    distinct = {_segment(as_array, allowed, limit).tobytes(): limit for limit in grid}
    limits = list(distinct.values())
    if len(limits) > most:
        # Denser where segments are few and long: there single borders make a difference.
        last = len(limits) - 1
        thinned = {limits[last - last * k * k // most**2] for k in range(most)}
        limits = sorted({*thinned, *paper})
    before: tuple[float, bool] | None = None
    for limit in limits:
        candidate = run(limit)
        yield candidate
        if budget_bytes is None:
            continue
        holds = candidate.peak_bytes <= budget_bytes
        if before is not None and before[1] != holds and len(distinct) > most:
            # Where the budget starts or stops to hold, look between the two values of B.
            low, high = before[0], limit
            for _ in range(BISECTIONS):
                middle = (low + high) / 2
                between = run(middle)
                yield between
                if (between.peak_bytes <= budget_bytes) == before[1]:
                    low = middle
                else:
                    high = middle
        before = (limit, holds)


def _paper_grid(sizes: Sequence[int], positions: Sequence[int]) -> list[float]:
    """The six values of appendix A, between B0 / sqrt 2 and B0 sqrt 2 with B0 = sqrt(x y)."""
    borders = segment(sizes, positions, 0)
    kept = sum(sizes[b - 1] for b in borders)
    largest = max((sum(sizes[a:b]) for a, b in pairwise([0, *borders, len(sizes)])), default=0)
    centre = float(kept * largest) ** 0.5
    return [centre * 2 ** (-0.5 + step / 5) for step in range(6)]


def _fine_grid(sizes: Sequence[int], count: int) -> list[float]:
    """Values of B from half the largest op to the whole forward phase, geometric and linear."""
    total = float(sum(sizes))
    start = max(max(sizes, default=0) / 2, total / (4 * len(sizes)), 1.0)
    ratio = max(total / start, 1.0) ** (1 / (count - 1))
    geometric = [start * ratio**step for step in range(count)]
    return geometric + [total * step / count for step in range(1, count)]
