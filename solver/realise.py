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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .graph import Graph


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
    """

    inputs: list[list[int]]
    outputs: list[list[int]]
    users: list[list[int]]
    producer: list[int]
    droppable: list[bool]
    boundary: int

    @classmethod
    def of(cls, graph: Graph) -> Tables:
        """Build the tables of `graph`."""
        arrays = graph.arrays
        count = len(graph.ops)
        producer = arrays.producer.tolist()
        boundary = graph.boundary
        return cls(
            inputs=[arrays.inputs(i).tolist() for i in range(count)],
            outputs=[arrays.outputs(i).tolist() for i in range(count)],
            users=[arrays.users(t).tolist() for t in range(len(graph.tensors))],
            producer=producer,
            droppable=[
                0 <= p < boundary and graph.ops[p].recompute and not tensor.output
                for p, tensor in zip(producer, graph.tensors, strict=True)
            ],
            boundary=boundary,
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
    kept = set(saved)
    present = [not able or t in kept for t, able in enumerate(tables.droppable)]
    if hold is None:
        return _walk(tables, present, lambda _tensor, _op: True)
    reach = hold
    return _walk(tables, present, lambda tensor, op: tables.next_use(tensor, op) <= op + reach)


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
    tables = tables or Tables.of(graph)
    made_in, last_in = _leaf_spans(tables, leaf_of)

    def crosses(tensor: int, leaf: int) -> bool:
        """Whether `tensor` belongs to leaf `leaf` or crosses a border stored for it."""
        if made_in[tensor] >= leaf:
            return True
        place = bisect_right(stored[leaf], made_in[tensor])
        return place < len(stored[leaf]) and stored[leaf][place] <= last_in[tensor]

    last_leaf = len(stored) - 1
    present = [
        not droppable or crosses(t, last_leaf) for t, droppable in enumerate(tables.droppable)
    ]
    return _walk(tables, present, crosses, leaf_of=made_in)


def border_tensors(tables: Tables, leaf_of: Sequence[int]) -> set[int]:
    """Tensors that a later leaf reads in the forward phase: the live sets at all borders."""
    made_in, last_in = _leaf_spans(tables, leaf_of)
    return {t for t, able in enumerate(tables.droppable) if able and last_in[t] > made_in[t]}


def _leaf_spans(tables: Tables, leaf_of: Sequence[int]) -> tuple[list[int], list[int]]:
    """Per tensor: the leaf that makes it and the last leaf that reads it in the forward phase."""
    made_in = [leaf_of[p] if 0 <= p < tables.boundary else -1 for p in tables.producer]
    last_in = list(made_in)
    for t, users in enumerate(tables.users):
        forward = [leaf_of[u] for u in users if u < tables.boundary]
        last_in[t] = max([made_in[t], *forward])
    return made_in, last_in


def _walk(
    tables: Tables,
    present: list[bool],
    stays: Callable[[int, int], bool],
    *,
    leaf_of: list[int] | None = None,
) -> list[int]:
    """Walk the base order, recomputing before each backward op what it misses.

    `present` says what the backward phase starts with. `stays(t, x)` says whether a recomputed
    tensor t stays, x being the op that it was recomputed for or, with `leaf_of`, that op's leaf.
    """
    computes = list(range(tables.boundary))
    for op in range(tables.boundary, len(tables.inputs)):
        missing = [t for t in tables.inputs[op] if not present[t]]
        if not missing:
            pass
        elif leaf_of is None:
            computes += _recompute(missing, op, tables, present, stays)
        else:
            missing.sort(key=leaf_of.__getitem__, reverse=True)
            for t in missing:
                if not present[t]:
                    computes += _recompute([t], leaf_of[t], tables, present, stays)
        computes.append(op)
    return computes


def _recompute(
    wanted: list[int],
    reason: int,
    tables: Tables,
    present: list[bool],
    stays: Callable[[int, int], bool],
) -> list[int]:
    """Ops to run so that `wanted` are in memory, in base order; updates `present`."""
    burst: set[int] = set()
    stack = [tables.producer[t] for t in wanted]
    while stack:
        op = stack.pop()
        if op not in burst:
            burst.add(op)
            stack.extend(tables.producer[t] for t in tables.inputs[op] if not present[t])
    order = sorted(burst)
    for op in order:
        for t in tables.outputs[op]:
            present[t] = present[t] or stays(t, reason)
    return order
