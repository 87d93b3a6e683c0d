"""Where a training step falls into blocks: forward borders that little crosses, and their mirror.

A border lies where few tensors cross in the forward phase. Its mirror in the backward phase lies
after the last op that reads anything made behind the border, before the first one that reads what
only the blocks before it know, and between the two where the fewest bytes of gradients cross.
Rotor (Beaumont et al. 2019) and Rockmate (Zhao et al. 2023) call these the stages of the chain;
nothing here needs module paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..array_types import Bools, Ints
    from ..graph import Graph

TINY = 200  # so many times smaller than the typical activation: not worth a decision at a border
WIDEST = 3  # tensors of a border at most
SPANS = (1, 2, 4, 8)  # tensors that live longer than such a part of the forward phase stay anyway
COARSEST = 0.3  # expected share of the forward phase that the block of an op takes


@dataclass(frozen=True, eq=False)
class Cuts:
    """A training step cut into blocks.

    Attributes
    ----------
    forward
        Block u is the forward ops `forward[u]` to `forward[u + 1] - 1`.
    backward
        And the backward ops `backward[u + 1]` to `backward[u] - 1`; descending.
    kept
        Per tensor: stays in memory once made, whatever is decided; counted as a constant.
    made, last_forward, last_use
        Per tensor: the op that makes it (-1: resident), the last forward op and the last op of all
        that reads it (-1: none).
    """

    forward: list[int]
    backward: list[int]
    kept: Bools
    made: Ints
    last_forward: Ints
    last_use: Ints

    def crossing(self, position: int) -> list[int]:
        """Forward tensors made before forward op `position` and read there or after it."""
        inside = (self.made >= 0) & (self.made < position) & (self.last_forward >= position)
        found: list[int] = np.flatnonzero(inside & ~self.kept).tolist()
        return found


def find_cuts(graph: Graph) -> list[Cuts]:
    """Cut `graph` at the borders of its blocks; empty if nothing of the kind is found.

    The first cut has borders only where all that crosses is read by the backward phase as well:
    nothing is kept there that would not be kept anyway. The second one has all narrow borders, if
    that makes a difference: smaller blocks, for smaller budgets.
    """
    arrays = graph.arrays
    boundary, count = graph.boundary, len(graph.ops)
    if not 3 < boundary < count:
        return []
    made = arrays.producer
    owner = np.repeat(np.arange(len(made)), np.diff(arrays.use_ptr))
    last_use = np.full(len(made), -1, dtype=np.int64)
    np.maximum.at(last_use, owner, arrays.use_idx)
    last_forward = np.full(len(made), -1, dtype=np.int64)
    early = arrays.use_idx < boundary
    np.maximum.at(last_forward, owner[early], arrays.use_idx[early])
    ahead = (made >= 0) & (made < boundary)
    fixed = ahead & ((arrays.output != 0) | (arrays.recompute[np.maximum(made, 0)] == 0))
    moving = ahead & ~fixed
    total = float(arrays.size[moving].sum())
    if total <= 0:
        return []
    typical = float((arrays.size[moving].astype(np.float64) ** 2).sum()) / total
    tiny = moving & (arrays.size * TINY <= typical)
    crosses = moving & (last_forward > made)
    for most in range(1, WIDEST + 1):
        for part in SPANS:
            long = crosses & (last_forward - made > boundary // part)
            counted = crosses & ~tiny & ~long
            found: list[Cuts] = []
            for barred in (counted & (last_use < boundary), np.zeros_like(counted)):
                borders = _borders(made, last_forward, counted, barred, boundary, most)
                edges = np.array([0, *borders, boundary])
                few = (np.diff(edges) ** 2).sum() > COARSEST * boundary**2
                if few or (found and len(edges) == len(found[0].forward)):
                    continue
                kept = fixed | long
                found.append(_mirror(graph, edges, kept, tiny, made, last_forward, last_use))
            if found:
                return found
    return []


def _borders(
    made: Ints, last: Ints, counted: Bools, barred: Bools, boundary: int, most: int
) -> list[int]:
    """Positions that at most `most` of the counted tensors cross, and none of the barred."""

    def crossing(mask: Bools) -> Ints:
        change = np.zeros(boundary + 2, dtype=np.int64)
        np.add.at(change, made[mask] + 1, 1)
        np.add.at(change, last[mask] + 1, -1)
        total: Ints = np.cumsum(change)[1:boundary]
        return total

    narrow = (crossing(counted) <= most) & (crossing(barred) == 0)
    found: list[int] = (np.flatnonzero(narrow) + 1).tolist()
    return found


def _mirror(
    graph: Graph, edges: Ints, kept: Bools, tiny: Bools, made: Ints, last: Ints, last_use: Ints
) -> Cuts:
    """Add where each block's part of the backward phase ends."""
    arrays, boundary, count = graph.arrays, graph.boundary, len(graph.ops)
    blocks = len(edges) - 1
    block_of = np.full(len(made), -1, dtype=np.int64)
    inside = (made >= 0) & (made < boundary)
    block_of[inside] = np.searchsorted(edges, made[inside], side="right") - 1
    # Small things that cross a border are not worth a decision: they stay.
    end_block = np.searchsorted(edges, np.maximum(last, 0), side="right") - 1
    kept = kept | (tiny & (last >= 0) & (end_block > block_of))
    moving = inside & ~kept & ~tiny & (last_use >= boundary)
    first_use = np.full(len(made), count, dtype=np.int64)
    owner = np.repeat(np.arange(len(made)), np.diff(arrays.use_ptr))
    late = arrays.use_idx >= boundary
    np.minimum.at(first_use, owner[late], arrays.use_idx[late])
    low = np.full(blocks + 1, boundary, dtype=np.int64)  # after all that reads from behind
    np.maximum.at(low, block_of[moving], last_use[moving] + 1)
    low = np.maximum.accumulate(low[::-1])[::-1]
    high = np.full(blocks + 2, count, dtype=np.int64)  # before all that reads from inside
    until = np.maximum(end_block, block_of)
    np.minimum.at(high, until[moving] + 1, first_use[moving])
    high = np.minimum.accumulate(high)
    crossing = _gradient_bytes(graph, made, last_use)
    backward = [boundary] * (blocks + 1)
    backward[0] = count
    for block in range(blocks - 1, 0, -1):
        start = max(int(low[block]), backward[block + 1])
        end = max(start, int(high[block]))
        between = crossing[start : end + 1]
        backward[block] = start + len(between) - 1 - int(between[::-1].argmin())
    # What a block is to read before its turn, or after it, stays in memory.
    turn = np.array(backward, dtype=np.int64)
    read_back = inside & (last_use >= boundary)
    kept = kept | (read_back & (first_use < turn[np.maximum(until, 0) + 1]))
    kept = kept | (read_back & (last_use >= turn[np.maximum(block_of, 0)]))
    return Cuts(edges.tolist(), backward, kept, made, last, last_use)


def _gradient_bytes(graph: Graph, made: Ints, last_use: Ints) -> Ints:
    """Per position: bytes made in the backward phase before it and read there or later."""
    arrays = graph.arrays
    change = np.zeros(len(graph.ops) + 2, dtype=np.int64)
    mask = (made >= graph.boundary) & (last_use > made) & (arrays.output == 0)
    np.add.at(change, made[mask] + 1, arrays.size[mask])
    np.add.at(change, last_use[mask] + 1, -arrays.size[mask])
    total: Ints = np.cumsum(change)
    return total
