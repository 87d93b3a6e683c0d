"""From what is kept in memory to the order in which ops run.

A planner says which tensors stay in memory across the forward/backward boundary; here the base
order is walked and whatever is missing is recomputed just before the op that needs it, together
with the ancestors that are missing too. `Schedule.from_computes` then frees everything as early as
possible. This is the optimal R given S of Checkmate (Jain et al., 2020, section 4.1), with one
freedom more: how long a recomputed tensor stays.

Results of ops that may run only once, and all results of the backward phase, are always kept until
their last need. Work is linear in the ops of the graph and the executions of the schedule.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .search.evaluate import arrays_of
from .walk import FULL, TOO_SLOW, Stays, walk

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .array_types import Bools, Ints
    from .graph import Graph
    from .search.evaluate import Arrays

NONE = np.zeros(0, dtype=np.int64)
FOREVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class Tables:
    """Lists of a graph that every walk needs, made once for many walks.

    Attributes
    ----------
    inputs, outputs
        Per op: tensors read (residents left out) and made.
    users
        Per tensor: ops that read it, ascending.
    producer
        Per tensor: the op that makes it, -1 for residents.
    droppable
        Per tensor: made before the boundary by an op that may run again.
    boundary
        First op of the backward phase; the number of ops if there is none.
    arrays
        The graph as the compiled functions read it.
    use_ptr, use_idx
        `users` as arrays.
    """

    inputs: list[list[int]]
    outputs: list[list[int]]
    users: list[list[int]]
    producer: list[int]
    droppable: list[bool]
    boundary: int
    arrays: Arrays
    use_ptr: Ints
    use_idx: Ints

    @classmethod
    def of(cls, graph: Graph) -> Tables:
        """Build the tables of `graph`."""
        arrays = graph.arrays
        producer = arrays.producer.tolist()
        boundary = graph.boundary
        return cls(
            inputs=_rows(arrays.in_ptr, arrays.in_idx),
            outputs=_rows(arrays.out_ptr, arrays.out_idx),
            users=_rows(arrays.use_ptr, arrays.use_idx),
            producer=producer,
            droppable=[
                0 <= p < boundary and graph.ops[p].recompute and not tensor.output
                for p, tensor in zip(producer, graph.tensors, strict=True)
            ],
            boundary=boundary,
            arrays=arrays_of(graph),
            use_ptr=arrays.use_ptr,
            use_idx=arrays.use_idx,
        )

    def next_use(self, tensor: int, op: int) -> int:
        """First user of `tensor` after base op `op`; the number of ops if there is none."""
        users = self.users[tensor]
        place = bisect_right(users, op)
        return users[place] if place < len(users) else len(self.inputs)


def realise_saved(
    graph: Graph,
    saved: Collection[int],
    *,
    hold: int | None = None,
    tables: Tables | None = None,
) -> list[int]:
    """Executions that keep only `saved` across the boundary and recompute the rest when needed.

    Parameters
    ----------
    saved
        Tensors kept across the boundary, also those that only recomputations read. What may not
        be recomputed is kept in any case.
    hold
        How many base ops further the next need of a recomputed tensor may lie for it to stay in
        memory until then; it is dropped and recomputed again otherwise. None: stays always, so
        that no op runs more than twice.
    tables
        `Tables.of(graph)`, if the caller has it.

    Returns
    -------
    list of int
        Op indices in the order in which they run; graphs without backward phase give the base
        order.
    """
    tables = tables or Tables.of(graph)
    mask = np.zeros(len(graph.tensors), dtype=np.bool_)
    mask[list(saved)] = True
    result: list[int] = saved_array(tables, mask, hold=hold).tolist()
    return result


def saved_array(
    tables: Tables, saved: Bools, *, hold: int | None = None, slowest: int = FOREVER
) -> Ints:
    """The same from a mask over tensors; empty if it takes more than `slowest` nanoseconds."""
    present = saved | ~np.array(tables.droppable, dtype=np.bool_)
    reach = -1 if hold is None else hold
    stays = Stays(reach, tables.use_ptr, tables.use_idx, NONE, NONE, NONE, NONE)
    return _walked(tables, present, stays, slowest)


def realise_nested(
    graph: Graph,
    leaf_of: Sequence[int],
    stored: Sequence[Sequence[int]],
    *,
    tables: Tables | None = None,
) -> list[int]:
    """Executions of recursive checkpointing, where a border is stored anew on each way down.

    The forward ops are cut into leaves, numbered in base order; border p lies before leaf p. While
    the backward phase works on leaf j, the tensors that cross a border in `stored[j]` and those of
    leaf j itself are kept when they are recomputed; everything else is dropped again at once.

    Parameters
    ----------
    leaf_of
        Leaf of each forward op, not decreasing.
    stored
        Per leaf: the borders on the way to it, ascending.
    tables
        `Tables.of(graph)`, if the caller has it.
    """
    pointer = np.zeros(len(stored) + 1, dtype=np.int64)
    np.cumsum([len(borders) for borders in stored], out=pointer[1:])
    flat = np.array([border for borders in stored for border in borders], dtype=np.int64)
    leaf = np.array(leaf_of, dtype=np.int64)
    result: list[int] = nested_array(tables or Tables.of(graph), leaf, pointer, flat).tolist()
    return result


def nested_array(tables: Tables, leaf_of: Ints, pointer: Ints, flat: Ints) -> Ints:
    """The same from arrays; the borders stored for leaf j are `flat[pointer[j]:pointer[j + 1]]`."""
    made_in, last_in = _leaf_spans(tables, leaf_of)
    stays = Stays(-1, tables.use_ptr, tables.use_idx, made_in, last_in, pointer, flat)
    present = ~np.array(tables.droppable, dtype=np.bool_)
    return _walked(tables, present, stays, FOREVER)


def border_tensors(tables: Tables, leaf_of: Sequence[int] | Ints) -> Bools:
    """Mask of tensors that a later leaf reads in the forward phase: what crosses any border."""
    made_in, last_in = _leaf_spans(tables, leaf_of)
    crossing: Bools = np.array(tables.droppable, dtype=np.bool_) & (last_in > made_in)
    return crossing


def _leaf_spans(tables: Tables, leaf_of: Sequence[int] | Ints) -> tuple[Ints, Ints]:
    """Per tensor: the leaf that makes it and the last leaf that reads it in the forward phase."""
    leaf = np.full(len(tables.inputs) + 1, -1, dtype=np.int64)  # one more: residents have op -1
    leaf[: tables.boundary] = leaf_of[: tables.boundary]
    made_in = leaf[tables.arrays.producer]
    last_in = made_in.copy()
    reader = tables.use_idx
    owner = np.repeat(np.arange(len(made_in)), np.diff(tables.use_ptr))
    np.maximum.at(last_in, owner, leaf[reader])
    return made_in, last_in


def _walked(tables: Tables, present: Bools, stays: Stays, slowest: int) -> Ints:
    """Walk with a buffer as large as it takes."""
    room = 3 * len(tables.inputs)
    while True:
        buffer = np.empty(room, dtype=np.int64)
        written = walk(tables.arrays, tables.boundary, present.copy(), stays, slowest, buffer)
        if written == TOO_SLOW:
            return NONE
        if written != FULL:
            return buffer[:written]
        room *= 3


def _rows(pointer: Ints, index: Ints) -> list[list[int]]:
    flat, ends = index.tolist(), pointer.tolist()
    return [flat[a:b] for a, b in pairwise(ends)]
