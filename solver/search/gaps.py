"""The search space: gaps between uses of a tensor, and which of them are worth moving."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ..array_types import Floats, Ints
    from ..graph import Graph
    from .evaluate import Arrays


class Gaps(NamedTuple):
    """Gaps as the compiled search reads them.

    Attributes
    ----------
    begin, end, owner
        Per gap: the base ops around it, and its tensor.
    movable
        Gaps that a decision is worth: longer than nothing, of a tensor that may be dropped.
    weight
        Cumulative weights of the movable gaps, by size and length.
    alike_of, alike_ptr, alike_idx
        Class of each movable gap, and the gaps of each class in order: the same place of the same
        kind of op in repeated blocks.
    """

    begin: Ints
    end: Ints
    owner: Ints
    movable: Ints
    weight: Floats
    alike_of: Ints
    alike_ptr: Ints
    alike_idx: Ints


def gaps_of(graph: Graph, arrays: Arrays) -> Gaps:
    """The gaps of `graph`."""
    a = graph.arrays
    count, total = len(graph.ops), int(arrays.gap_ptr[-1])
    begin = np.zeros(total, dtype=np.int64)
    end = np.zeros(total, dtype=np.int64)
    owner = np.zeros(total, dtype=np.int64)
    can_move = np.zeros(total, dtype=np.bool_)
    keys: list[tuple[object, ...]] = [()] * total
    for t in range(len(a.size)):
        if a.producer[t] < 0:
            continue
        maker = int(a.producer[t])
        at = [maker, *a.users(t).tolist(), count]
        users = tuple(graph.ops[op].kind for op in at[1:-1])
        place = int(np.flatnonzero(a.outputs(maker) == t)[0])
        for j, (first, last) in enumerate(itertools.pairwise(at)):
            gap = int(arrays.gap_ptr[t]) + j
            begin[gap], end[gap], owner[gap] = first, last, t
            useful = last - first > 1 and (last < count or len(at) > 2)
            can_move[gap] = useful and not arrays.forced[t] and a.size[t] > 0
            keys[gap] = (graph.ops[maker].kind, place, int(a.size[t]), users, j)
    movable = np.flatnonzero(can_move)
    # Large tensors that would stay long are where most of the gain lies.
    length = (end - begin)[movable].astype(np.float64)
    weight: Floats = np.cumsum(a.size[owner[movable]] * np.sqrt(length), dtype=np.float64)
    classes: dict[tuple[object, ...], list[int]] = {}
    for gap in movable.tolist():
        classes.setdefault(keys[gap], []).append(gap)
    number = {key: i for i, key in enumerate(classes)}
    alike_of = np.array([number[keys[gap]] for gap in movable.tolist()], dtype=np.int64)
    alike_ptr = np.zeros(len(classes) + 1, dtype=np.int64)
    np.cumsum([len(group) for group in classes.values()], out=alike_ptr[1:])
    flat = [gap for group in classes.values() for gap in group]
    alike_idx = np.array(flat, dtype=np.int64)
    return Gaps(begin, end, owner, movable, weight, alike_of, alike_ptr, alike_idx)
