"""Which blocks are alike: canonical descriptions, and longer blocks from pairs that repeat.

Two blocks are alike if their ops, sizes and dependencies are the same up to numbering and their
measured times nearly so. Where there are too many blocks to compose, the pair of neighbours that
occurs most often becomes one block, again and again (byte-pair encoding, Gage 1994): alike blocks
grow in step, so that they stay alike.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..array_types import Ints
    from ..graph import Graph
    from .cut import Cuts

NEAR = 1.25  # times of alike blocks differ by at most this factor


def classes(graph: Graph, cuts: Cuts) -> list[int]:
    """Class of each block; the last block is always a class of its own."""
    keys: dict[object, int] = {}
    groups: list[list[int]] = []
    for block in range(len(cuts.forward) - 1):
        number = keys.setdefault(_key(graph, cuts, block), len(groups))
        if number == len(groups):
            groups.append([])
        groups[number].append(block)
    result = [-1] * (len(cuts.forward) - 1)
    count = 0
    for group in groups:
        group.sort(key=lambda block: _time(graph, cuts, block))
        start = _time(graph, cuts, group[0])
        for block in group:
            if _time(graph, cuts, block) > NEAR * start:
                start = _time(graph, cuts, block)
                count += 1
            result[block] = count
        count += 1
    result[-1] = count
    first_of = {number: i for i, number in enumerate(dict.fromkeys(result))}
    return [first_of[number] for number in result]


def merge_most_frequent(
    sequence: Sequence[int], starts: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Make one block of every occurrence of the most frequent pair; the same if none occurs twice.

    Parameters
    ----------
    sequence
        Class of each block.
    starts
        First of the original blocks in each.
    """
    pairs: Counter[tuple[int, int]] = Counter()
    previous: tuple[int, int] | None = None
    for i in range(len(sequence) - 2):  # not the last block
        pair = (sequence[i], sequence[i + 1])
        if pair == previous:  # of three in a row only one pair can be made
            previous = None
            continue
        pairs[pair] += 1
        previous = pair
    if not pairs:
        return list(sequence), list(starts)
    best, times = max(pairs.items(), key=lambda item: item[1])
    if times < 2:
        return list(sequence), list(starts)
    fresh = max(sequence) + 1
    merged: list[int] = []
    begin: list[int] = []
    i = 0
    while i < len(sequence):
        begin.append(starts[i])
        if i + 2 < len(sequence) and (sequence[i], sequence[i + 1]) == best:
            merged.append(fresh)
            i += 2
        else:
            merged.append(sequence[i])
            i += 1
    return merged, begin


def stretches(sequence: Sequence[int]) -> tuple[Ints, Ints]:
    """Number of each stretch i..j of blocks: the same for the same sequence of classes.

    Returns
    -------
    array, array
        (blocks, blocks) numbers, -1 below the diagonal, shorter stretches first; and per number
        its first occurrence as (i, j).
    """
    count = len(sequence)
    classes_of = np.array(sequence, dtype=np.int64)
    number = np.full((count, count), -1, dtype=np.int64)
    firsts: list[Ints] = []
    known = 0
    width = int(classes_of.max()) + 1
    before = np.zeros(count + 1, dtype=np.int64)
    for length in range(1, count + 1):
        key = before[: count - length + 1] * width + classes_of[length - 1 :]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        i = np.arange(count - length + 1)
        number[i, i + length - 1] = inverse + known
        firsts.append(np.stack([first, first + length - 1], axis=1))
        known += len(first)
        before = inverse
    return number, np.concatenate(firsts)


def _time(graph: Graph, cuts: Cuts, block: int) -> float:
    time = graph.arrays.time
    forward = time[cuts.forward[block] : cuts.forward[block + 1]].sum()
    return float(forward + time[cuts.backward[block + 1] : cuts.backward[block]].sum())


def _key(graph: Graph, cuts: Cuts, block: int) -> object:
    """All that the planning of a block depends on, but its times."""
    boundary = cuts.forward[-1]
    start, end = cuts.forward[block], cuts.forward[block + 1]
    low, high = cuts.backward[block + 1], cuts.backward[block]
    outside: dict[int, int] = {}

    def reference(tensor: int) -> object:
        maker = int(cuts.made[tensor])
        if maker < 0:
            return "resident"
        if cuts.kept[tensor]:
            return "kept"
        if start <= maker < end:
            return maker - start, graph.ops[maker].outputs.index(tensor)
        if low <= maker < high:
            return maker - low, graph.ops[maker].outputs.index(tensor), "backward"
        number = outside.setdefault(tensor, len(outside))
        return number, graph.tensors[tensor].size_bytes, maker < boundary, "outside"

    def fate(tensor: int, forward: bool) -> object:
        out = graph.tensors[tensor]
        leaves = cuts.last_forward[tensor] >= end if forward else cuts.last_use[tensor] >= high
        return out.size_bytes, out.output, bool(cuts.kept[tensor]), bool(leaves)

    lines: list[object] = []
    for op in (*range(start, end), *range(low, high)):
        it = graph.ops[op]
        lines.append(
            (
                it.kind,
                it.recompute,
                it.workspace_bytes,
                it.rerun_workspace_bytes,
                -1 if it.overwrites < 0 else it.inputs.index(it.overwrites),
                tuple(reference(t) for t in it.inputs),
                tuple(fate(t, op < end) for t in it.outputs),
            )
        )
    return end - start, tuple(lines)
