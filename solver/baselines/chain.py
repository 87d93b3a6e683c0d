"""A training step as a chain of stages, for methods that know chains only.

The forward order is cut at borders into stages 0 .. l - 1; stage i reads what crosses border i, and
the backward phase goes back through the stages. On a graph that is no chain every tensor that
crosses a border belongs to it: the graph is linearized, as Checkmate does for such baselines (Jain
et al. 2020, section 6.1).

What a chain method decides is, per stage, from which stage on the forward phase runs again before
the backward phase enters it. Everything else follows: a tensor lives until its last need before it
is made again, so the inputs of later runs are the snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from .base import crossing_bytes, evaluate, narrow_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..array_types import Ints
    from ..graph import Graph
    from ..realise import Tables
    from ..search.evaluate import Arrays
    from .base import Candidate

Runs = tuple[int | None, ...]
"""Per stage: the first stage to run again before its backward; None: it is all in memory."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A graph cut into stages.

    Attributes
    ----------
    borders
        First forward op of each stage; the first one is 0.
    entered
        Per stage: the backward op before which its results must be in memory; the number of ops if
        no backward op needs them.
    """

    graph: Graph
    tables: Tables
    borders: tuple[int, ...]
    entered: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, tables: Tables, positions: Sequence[int], most: int) -> Chain:
        """Cut at `positions`, or at `most` - 1 of them that make stages of about equal bytes."""
        borders = (0, *_thinned(graph, tables, positions, most))
        return cls(graph, tables, borders, _entered(tables, borders))

    @property
    def length(self) -> int:
        """Number of stages, l."""
        return len(self.borders)

    def run(self, runs: Runs) -> Candidate:
        """The step in which stages `runs[i]` .. i run again before the backward of stage i."""
        tables = self.tables
        again = np.array([-1 if start is None else start for start in runs], dtype=np.int64)
        borders = np.array([*self.borders, tables.boundary], dtype=np.int64)
        entered = np.array(self.entered, dtype=np.int64)
        recompute = self.graph.arrays.recompute
        computes = _unrolled(borders, entered, again, recompute, len(self.graph.ops))
        return evaluate(self.graph, tables, pruned(tables.arrays, computes))


def linearized(graph: Graph, tables: Tables, most: int) -> list[Chain]:
    """The graph cut at its narrow positions, and at any position (where that differs)."""
    narrow = narrow_positions(graph, tables)
    chains = [Chain.of(graph, tables, narrow, most)]
    every = Chain.of(graph, tables, range(1, tables.boundary), most)
    return chains if every.borders == chains[0].borders else [*chains, every]


def _thinned(graph: Graph, tables: Tables, positions: Sequence[int], most: int) -> list[int]:
    """Of positions, at most `most` - 1: the cheapest ones near equal shares of the bytes made."""
    if len(positions) < most:
        return list(positions)
    crossing = crossing_bytes(graph, tables)
    size = graph.arrays.size
    made = np.array([size[tables.outputs[op]].sum() + 1 for op in range(tables.boundary)])
    before = np.concatenate(([0], np.cumsum(made)))
    share = before[-1] / most
    best: dict[int, int] = {}
    for p in positions:
        part = int(before[p] // share)
        if part and (part not in best or crossing[p] < crossing[best[part]]):
            best[part] = p
    return sorted(best.values())


def _entered(tables: Tables, borders: Sequence[int]) -> tuple[int, ...]:
    stage_of = np.zeros(tables.boundary, dtype=np.int64)
    stage_of[list(borders)] = 1
    stage_of = np.cumsum(stage_of) - 1
    count = len(tables.inputs)
    entered = [count] * len(borders)
    current = len(borders)
    for op in range(tables.boundary, count):
        lowest = current
        for t in tables.inputs[op]:
            if tables.droppable[t]:
                # What crosses a border is there as the input of the last stage that reads it.
                readers = [u for u in tables.users[t] if u < tables.boundary]
                last = max([tables.producer[t], *readers])
                lowest = min(lowest, int(stage_of[last]))
        for stage in range(lowest, current):
            entered[stage] = op
        current = lowest
    return tuple(entered)


@njit(cache=True, nogil=True)
def _unrolled(borders: Ints, entered: Ints, again: Ints, recompute: Ints, count: int) -> Ints:
    """The base order with the runs put in; ops that may run only once are left out of them."""
    boundary = borders[-1]
    total = count
    for stage in range(len(again)):
        if again[stage] >= 0:
            total += borders[stage + 1] - borders[again[stage]]
    computes = np.empty(total, dtype=np.int64)
    computes[:boundary] = np.arange(boundary)
    written = boundary
    stage = len(again) - 1
    for op in range(boundary, count):
        while stage >= 0 and entered[stage] <= op:
            if again[stage] >= 0:
                for p in range(borders[again[stage]], borders[stage + 1]):
                    if recompute[p] == 1:
                        computes[written] = p
                        written += 1
            stage -= 1
        computes[written] = op
        written += 1
    return computes[:written].copy()


@njit(cache=True, nogil=True)
def pruned(g: Arrays, computes: Ints) -> Ints:
    """Without the repeated executions whose results nothing reads."""
    needed = np.zeros(len(g.size), dtype=np.bool_)
    left = np.zeros(len(g.time), dtype=np.int64)
    for op in computes:
        left[op] += 1
    stays = np.ones(len(computes), dtype=np.bool_)
    for i in range(len(computes) - 1, -1, -1):
        op = computes[i]
        left[op] -= 1
        used = left[op] == 0
        for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
            used = used or needed[g.out_idx[j]]
        if not used:
            stays[i] = False
            continue
        for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
            needed[g.out_idx[j]] = False
        for j in range(g.in_ptr[op], g.in_ptr[op + 1]):
            needed[g.in_idx[j]] = True
    return computes[stays]


@dataclass(frozen=True, eq=False)
class ChainCosts:
    """What a heterogeneous chain costs, per stage (rotor's notation in brackets).

    Attributes
    ----------
    forward_ns, backward_ns
        Time of the ops [uF, uB].
    input_bytes
        What crosses into the stage [a].
    all_bytes
        What the backward phase reads of the stage, and what leaves it [a-bar].
    backward_bytes
        Largest sum of other tensors during its backward [oB].
    """

    forward_ns: Ints
    backward_ns: Ints
    input_bytes: Ints
    all_bytes: Ints
    backward_bytes: Ints

    @classmethod
    def of(cls, chain: Chain) -> ChainCosts:
        """Read off the graph."""
        graph, tables = chain.graph, chain.tables
        arrays, boundary = graph.arrays, tables.boundary
        crossing = crossing_bytes(graph, tables)
        ends = np.array([*chain.borders[1:], boundary], dtype=np.int64)
        starts = np.array(chain.borders, dtype=np.int64)
        held = np.zeros(boundary, dtype=np.int64)
        for t, p in enumerate(tables.producer):
            users = tables.users[t]
            if 0 <= p < boundary and users:
                stage_end = ends[np.searchsorted(ends, p, side="right")]
                if users[-1] >= stage_end:
                    held[p] += arrays.size[t]
        live_backward = live_in_backward(graph, tables)
        turns = [*chain.entered[::-1], len(graph.ops)]
        backward = [(a, b) for a, b in pairwise(turns)][::-1]

        def most(values: Ints, start: int, end: int) -> int:
            return int(values[start:end].max(initial=0))

        pairs = list(zip(starts.tolist(), ends.tolist(), strict=True))
        return cls(
            forward_ns=np.array([arrays.time[a:b].sum() for a, b in pairs], dtype=np.int64),
            backward_ns=np.array([arrays.time[a:b].sum() for a, b in backward], dtype=np.int64),
            input_bytes=np.array([crossing[a] for a in starts], dtype=np.int64),
            all_bytes=np.array([held[a:b].sum() for a, b in pairs], dtype=np.int64),
            backward_bytes=np.array(
                [most(live_backward, a, b) for a, b in backward], dtype=np.int64
            ),
        )


def live_in_backward(graph: Graph, tables: Tables) -> Ints:
    """Per op: bytes made in the backward phase that are live during it, with workspace."""
    count = len(graph.ops)
    change = np.zeros(count + 1, dtype=np.int64)
    for t, p in enumerate(tables.producer):
        if p >= tables.boundary:
            last = count - 1 if graph.tensors[t].output else max([p, *tables.users[t]])
            change[p] += graph.tensors[t].size_bytes
            change[last + 1] -= graph.tensors[t].size_bytes
    live: Ints = np.cumsum(change)[:-1] + graph.arrays.workspace
    return live
