"""Offsets for blocks, by rules of thumb: best fit in the order of time, and larger ones first.

Putting blocks of fixed lifetimes into the shortest buffer is dynamic storage allocation, NP-hard in
general. Best fit in the order of time is what an allocator does; placing by size, as TensorFlow
Lite does (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference"),
knows the future. Which is better depends on the schedule: all are tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..array_types import Ints
    from .blocks import Block


def padded(block: Block, alignment: int) -> int:
    """Bytes of a block with the padding behind it."""
    return -(-block.size_bytes // alignment) * alignment


def live_bytes(blocks: Sequence[Block], alignment: int) -> int:
    """Most bytes that are live at once: no buffer can be shorter."""
    if not blocks:
        return 0
    change = np.zeros(max(block.last for block in blocks) + 2, dtype=np.int64)
    for block in blocks:
        change[block.first] += padded(block, alignment)
        change[block.last + 1] -= padded(block, alignment)
    return int(np.cumsum(change).max())


def orders(blocks: Sequence[Block]) -> dict[str, list[int]]:
    """Names of the rules, and the order in which each of them places blocks."""
    every = range(len(blocks))

    def length(i: int) -> int:
        return blocks[i].last - blocks[i].first

    return {
        "best fit": sorted(every, key=lambda i: (blocks[i].first, -length(i), i)),
        "largest first": sorted(every, key=lambda i: (-blocks[i].size_bytes, -length(i), i)),
        "longest first": sorted(every, key=lambda i: (-length(i), -blocks[i].size_bytes, i)),
        "most byte-steps first": sorted(
            every, key=lambda i: (-blocks[i].size_bytes * (length(i) + 1), i)
        ),
    }


def place(blocks: Sequence[Block], order: Sequence[int], alignment: int) -> list[int]:
    """Offset of each block: in `order`, each goes into the tightest gap that it fits into.

    A gap is free between the block's neighbours for the whole of its life; without one, the block
    goes on top.
    """
    count = len(blocks)
    size = np.array([padded(block, alignment) for block in blocks], dtype=np.int64)
    first = np.array([block.first for block in blocks], dtype=np.int64)
    last = np.array([block.last for block in blocks], dtype=np.int64)
    offsets = np.zeros(count, dtype=np.int64)
    # Placed blocks, kept in the order of their offsets.
    placed = np.empty(count, dtype=np.int64)
    begins = np.empty(count, dtype=np.int64)
    for done, i in enumerate(order):
        there = placed[:done]
        near = there[(first[there] <= last[i]) & (last[there] >= first[i])]
        offset = _tightest(offsets[near], offsets[near] + size[near], int(size[i]))
        offsets[i] = offset
        where = int(np.searchsorted(begins[:done], offset))
        placed[where + 1 : done + 1] = placed[where:done].copy()
        begins[where + 1 : done + 1] = begins[where:done].copy()
        placed[where], begins[where] = i, offset
    result: list[int] = offsets.tolist()
    return result


def _tightest(begins: Ints, ends: Ints, size: int) -> int:
    """Start of the smallest gap of at least `size` below, between or above blocks by offset."""
    if not len(begins):
        return 0
    above = np.maximum.accumulate(ends)
    starts = np.concatenate(([0], above[:-1]))
    gaps = begins - starts
    fitting = np.flatnonzero(gaps >= size)
    if not len(fitting):
        return int(above[-1])
    return int(starts[fitting[gaps[fitting].argmin()]])
