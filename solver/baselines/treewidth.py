"""Schedules from tree and path decompositions: Kumar et al., NeurIPS 2019.

The ops are split by balanced separators X of a decomposition of width k, recursively. To have the
ops `want` of a part in memory: for each v in X that they depend on, in topological order, get what
v reads from the parts below (recursively) and compute v; then get the rest of `want` from the
parts. What is not wanted is dropped and made again when it is needed next. On each of O(log n)
levels at most one separator and one op's inputs are held: O(k log n) results in memory, and a part
of m ops runs T(m) <= (k + 2) T(m / 2) executions: n^O(log k) in all.

The schedule counts results, not bytes. Afterwards recomputations are taken out greedily while the
budget allows it, as published. Ops that may run only once run once and are kept.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from ..bits import members
from ..realise import Tables
from .base import NotApplicableError, base_order, choose, evaluate
from .chain import pruned
from .decomposition import decompose, dependencies, separators
from .thin import thin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule
    from .base import Candidate
    from .decomposition import Kind, Separator

MOST_RUNS = 60  # executions per op; a longer schedule is not written down


def treewidth(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """The schedule of a tree decomposition, less the recomputations that the budget makes needless.

    Raises
    ------
    NotApplicableError
        If it would run ops more than `MOST_RUNS` times on average.
    """
    return choose(_candidates(graph, budget_bytes, control, "tree"), budget_bytes, control)


def pathwidth(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """The same of a path decomposition.

    Raises
    ------
    NotApplicableError
        If it would run ops more than `MOST_RUNS` times on average.
    """
    return choose(_candidates(graph, budget_bytes, control, "path"), budget_bytes, control)


def executions(graph: Graph, kind: Kind, control: Control | None = None) -> list[int] | None:
    """The schedule before the greedy pass; None if it is longer than `MOST_RUNS` allows.

    Nor is there one if the time of `control` passes.
    """
    trees = separators(decompose(graph, kind))
    arrays = graph.arrays
    sinks = 0
    for op in range(len(graph.ops)):
        if not any(len(arrays.users(t)) for t in arrays.outputs(op)):
            sinks |= 1 << op
    writer = _Writer(graph, control)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 50 * max(tree.depth for tree in trees))
    try:
        for tree in trees:
            if not writer.remat(tree, sinks & tree.inside):
                return None
    finally:
        sys.setrecursionlimit(limit)
    return writer.computes


class _Writer:
    def __init__(self, graph: Graph, control: Control | None) -> None:
        self.control = control
        self.before = dependencies(graph)
        self.ancestors: list[int] = []
        for op, bits in enumerate(self.before):
            found = bits | 1 << op
            for p in members(bits):
                found |= self.ancestors[p]
            self.ancestors.append(found)
        self.once = [not op.recompute for op in graph.ops]
        self.most = MOST_RUNS * len(graph.ops)
        self.done = 0
        self.computes: list[int] = []

    def remat(self, tree: Separator, want: int) -> bool:
        """Have `want` in memory; False if that takes too many executions."""
        if not want:
            return True
        if self.control is not None and self.control.over:
            return False
        needed = 0
        for op in members(want):
            needed |= self.ancestors[op]
        for op in members(tree.ops & needed):  # ascending: a topological order
            if self.once[op] and self.done >> op & 1:
                continue
            for part in tree.parts:
                if not self.remat(part, self.before[op] & part.inside):
                    return False
            self.computes.append(op)
            self.done |= 1 << op
            if len(self.computes) > self.most:
                return False
        return all(self.remat(part, want & ~tree.ops & part.inside) for part in tree.parts)


def _candidates(
    graph: Graph, budget_bytes: int | None, control: Control | None, kind: Kind
) -> Iterator[Candidate]:
    tables = Tables.of(graph)
    yield base_order(graph, tables)
    computes = executions(graph, kind, control)
    if computes is None and control is not None and control.over:
        return
    if computes is None:
        raise NotApplicableError(
            f"the schedule of the {kind} decomposition of {graph.name!r} runs its ops more than "
            f"{MOST_RUNS} times on average"
        )
    whole = evaluate(graph, tables, pruned(tables.arrays, np.array(computes, dtype=np.int64)))
    yield whole
    if budget_bytes is not None and whole.peak_bytes <= budget_bytes:
        yield thin(graph, tables, whole, budget_bytes, control)
