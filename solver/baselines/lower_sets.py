"""Lower sets of the forward graph: downward closed sets of ops, as masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..array_types import Bools2
    from ..control import Control
    from ..graph import Graph
    from ..realise import Tables


def parents(graph: Graph, tables: Tables) -> list[list[int]]:
    """Per forward op: the forward ops whose results it reads."""
    return [
        sorted({tables.producer[t] for t in tables.inputs[op]}) for op in range(tables.boundary)
    ]


def ancestor_sets(graph: Graph, tables: Tables, most: int) -> Bools2:
    """The ancestors of each op with it, the empty set and the whole forward phase, without repeats.

    If there are more than `most`, an even selection.
    """
    above = parents(graph, tables)
    sets = np.zeros((tables.boundary, tables.boundary), dtype=np.bool_)
    for op, before in enumerate(above):
        for p in before:
            sets[op] |= sets[p]
        sets[op, op] = True
    if len(sets) > most:
        sets = sets[np.linspace(0, len(sets) - 1, most).astype(np.int64)]
    return _sorted(sets)


def all_lower_sets(graph: Graph, tables: Tables, most: int, control: Control) -> Bools2 | None:
    """All lower sets, or those found until `control` is over; None if they are more than `most`."""
    above = parents(graph, tables)
    masks = [0] * tables.boundary
    for op, before in enumerate(above):
        for p in before:
            masks[op] |= 1 << p
    found = {0}
    todo = [0]
    while todo and not control.over:
        lower = todo.pop()
        for op in range(tables.boundary):
            larger = lower | 1 << op
            if larger != lower and masks[op] & ~lower == 0 and larger not in found:
                found.add(larger)
                todo.append(larger)
                if len(found) > most:
                    return None
    sets = np.array(
        [[mask >> op & 1 for op in range(tables.boundary)] for mask in found], dtype=np.bool_
    )
    return _sorted(sets)


def boundary_of(graph: Graph, tables: Tables, sets: Bools2) -> Bools2:
    """(sets, tensors): made inside and read by a forward op outside."""
    result = np.zeros((len(sets), len(graph.tensors)), dtype=np.bool_)
    for t, p in enumerate(tables.producer):
        readers = [u for u in tables.users[t] if u < tables.boundary]
        if 0 <= p < tables.boundary and readers:
            result[:, t] = sets[:, p] & ~sets[:, readers].all(axis=1)
    return result


def _sorted(sets: Bools2) -> Bools2:
    ends = np.array([np.zeros(sets.shape[1]), np.ones(sets.shape[1])], dtype=np.bool_)
    every = np.unique(np.concatenate([sets, ends]), axis=0)
    order = np.argsort(every.sum(axis=1), kind="stable")
    result: Bools2 = every[order]
    return result
