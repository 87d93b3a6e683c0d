"""The algorithms of Chen et al. 2016 (arXiv 1604.06174), each as it is written.

`segmented` is Algorithm 1 (segments given by the user), `mirrored` Algorithm 2 (a mirror count per
op), `cheap_mirrors` the mirror counts of section 4.2, `by_bytes` Algorithm 3 for one B and a
boundary function. The searches over B and over depths are `sqrt_n` and `log_n`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from .base import both_phases, evaluate, forward_sizes
from .per_block import checkpoint_groups
from .sqrt_n import checkpoint, segment

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..graph import Graph, Op
    from .base import Candidate

CHEAP = (
    "norm", "relu", "gelu", "silu", "swish", "sigmoid", "tanh", "elu", "hardtanh", "softplus",
    "pool", "dropout", "bernoulli",
)  # fmt: skip


def by_modules(names: Sequence[str]) -> Callable[[Op], str | None]:
    """Segments by module name: an op belongs to the named module that contains it."""

    def of(op: Op) -> str | None:
        inside = [n for n in names if op.module == n or op.module.startswith(f"{n}.")]
        return max(inside, key=len) if inside else None

    return of


def segmented(graph: Graph, segment_of: Callable[[Op], Hashable | None]) -> Candidate:
    """Algorithm 1: keep what enters and leaves segments, recompute what only one of them reads.

    Parameters
    ----------
    segment_of
        The segment of a forward op; None: what it makes is kept.

    Raises
    ------
    InputError
        If no op is in a segment.
    """
    tables = both_phases(graph)
    found = [segment_of(op) for op in graph.ops[: tables.boundary]]
    number: dict[Hashable, int] = {}
    for key in found:
        if key is not None:
            number.setdefault(key, len(number))
    if not number:
        raise InputError(f"no op of the forward phase of {graph.name!r} is in a segment")
    names = ["" if key is None else str(number[key]) for key in found]
    return checkpoint_groups(graph, tables, names, {str(i): i for i in number.values()})


def equal_segments(graph: Graph, count: int) -> Candidate:
    """`checkpoint_sequential`: so many segments of equally many ops, the last one kept whole.

    Raises
    ------
    InputError
        If there are not that many ops.
    """
    tables = both_phases(graph)
    if not 1 <= count <= tables.boundary:
        raise InputError(f"segments must be between 1 and {tables.boundary}, not {count}")
    borders = [tables.boundary * i // count for i in range(1, count)]
    return checkpoint(graph, tables, borders)


def by_bytes(graph: Graph, limit: float, boundary: Callable[[Op], bool] | None) -> Candidate:
    """Algorithm 3 for one B: a border after the first candidate once B bytes were made.

    Parameters
    ----------
    limit
        B, in bytes.
    boundary
        Whether a border may lie right after an op (membership in C); None: anywhere.
    """
    tables = both_phases(graph)
    ops = graph.ops[: tables.boundary]
    positions = [i + 1 for i, op in enumerate(ops[:-1]) if boundary is None or boundary(op)]
    borders = segment(forward_sizes(graph), positions, limit)
    return checkpoint(graph, tables, borders)


def cheap_mirrors(op: Op) -> int:
    """Section 4.2: drop results of batch norm, activations and pooling, keep the others."""
    kind = op.kind.lower()
    return int(any(word in kind for word in CHEAP))


def mirrored(graph: Graph, mirror: Callable[[Op], int]) -> Candidate:
    """Algorithm 2: the backward phase reads copies of the ops whose mirror count is above zero.

    An op of count 0 is kept. One of count m runs at most m times more: after each of the first
    m - 1 its result is dropped again at once, after the last it stays until its last need.
    """
    tables = both_phases(graph)
    counts = [max(0, mirror(op)) for op in graph.ops[: tables.boundary]]
    present = [
        not able or counts[p] == 0
        for able, p in zip(tables.droppable, tables.producer, strict=True)
    ]
    runs = [0] * tables.boundary
    computes = list(range(tables.boundary))
    for base in range(tables.boundary, len(graph.ops)):
        again: set[int] = set()
        todo = [t for t in tables.inputs[base] if not present[t]]
        while todo:
            p = tables.producer[todo.pop()]
            if p not in again:
                again.add(p)
                todo.extend(t for t in tables.inputs[p] if not present[t])
        computes.extend(sorted(again))
        for p in again:
            runs[p] += 1
            if runs[p] >= counts[p]:
                for t in tables.outputs[p]:
                    present[t] = True
        computes.append(base)
    return evaluate(graph, tables, np.array(computes, dtype=np.int64))
