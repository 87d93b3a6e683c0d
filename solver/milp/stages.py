"""Cuts of the base order into stages, and what still matters at each cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..array_types import Bools
    from ..graph import Graph


@dataclass(frozen=True, order=True)
class Stage:
    """Base ops first..last. `exact`: one op, with memory followed through its recomputations."""

    first: int
    last: int
    exact: bool = False


def whole(graph: Graph) -> tuple[Stage, ...]:
    """The coarsest useful cut: at the border between forward and backward if there is one."""
    count, border = len(graph.ops), graph.boundary
    if 0 < border < count:
        return (Stage(0, border - 1), Stage(border, count - 1))
    return (Stage(0, count - 1),)


def every_op(graph: Graph) -> tuple[Stage, ...]:
    """Checkmate's cut: one exact stage per op."""
    return tuple(Stage(i, i, exact=i > 0) for i in range(len(graph.ops)))


def split_at(stages: tuple[Stage, ...], op: int) -> tuple[Stage, ...]:
    """Make `op` an exact stage of its own: before | op | after. The same cut if it is one."""
    result: list[Stage] = []
    for stage in stages:
        if not stage.first <= op <= stage.last or stage.exact:
            result.append(stage)
            continue
        if stage.first < op:
            result.append(Stage(stage.first, op - 1))
        result.append(Stage(op, op, exact=op > 0))
        if op < stage.last:
            result.append(Stage(op + 1, stage.last))
    return tuple(result)


def cut_after(stages: tuple[Stage, ...], op: int) -> tuple[Stage, ...]:
    """End a stage with `op`, so that memory during it is bounded. The same cut if one does."""
    result: list[Stage] = []
    for stage in stages:
        if stage.first <= op < stage.last:
            result += [Stage(stage.first, op), Stage(op + 1, stage.last)]
        else:
            result.append(stage)
    return tuple(result)


def merge_at(stages: tuple[Stage, ...], op: int) -> tuple[Stage, ...]:
    """Take out the cut after `op` between two coarse stages. The same cut if there is none."""
    result: list[Stage] = []
    for stage in stages:
        if result and result[-1].last == op and not (result[-1].exact or stage.exact):
            result[-1] = Stage(result[-1].first, stage.last)
        else:
            result.append(stage)
    return tuple(result)


@dataclass(frozen=True, eq=False)
class Relevance:
    """What can still matter when base ops first.. are to run.

    Attributes
    ----------
    ops
        Per op: it came before and may be worth recomputing.
    tensors
        Per tensor: it was produced before and something that can still run reads it.
    """

    ops: Bools
    tensors: Bools

    @classmethod
    def at(cls, graph: Graph, first: int, free: Bools) -> Relevance:
        """Relevance at a cut before op `first`; `free` tensors need never be recomputed."""
        arrays = graph.arrays
        ops = np.zeros(len(graph.ops), dtype=np.bool_)
        tensors = np.zeros(len(graph.tensors), dtype=np.bool_)
        later = arrays.in_idx[arrays.in_ptr[first] :]
        tensors[later[arrays.producer[later] < first]] = True
        for op in range(first - 1, -1, -1):
            made = arrays.outputs(op)
            if not arrays.recompute[op] or not bool((tensors[made] & ~free[made]).any()):
                continue
            ops[op] = True
            tensors[arrays.inputs(op)] = True
        return cls(ops, tensors)


def free_tensors(graph: Graph, room_bytes: int, share: float) -> Bools:
    """Tensors that the integer program may treat as always in memory at no cost.

    Outputs (they stay anyway), empty tensors, and the smallest ones while they sum to at most
    `share` of `room_bytes`. Ignoring their bytes is a relaxation: lower bounds stay lower bounds.
    """
    arrays = graph.arrays
    free: Bools = (arrays.output != 0) | (arrays.size == 0) | (arrays.producer < 0)
    order = np.argsort(arrays.size, kind="stable")
    order = order[~free[order]]
    within = np.cumsum(arrays.size[order]) <= share * max(0, room_bytes)
    free[order[within]] = True
    return free
