"""A lower bound on the time of every schedule within a budget, whatever its order.

Take any op v. When it runs for the first time, what it depends on has run before, and what depends
on it has not. The latter still needs results of the former: each of them is kept during the first
run of v, which memory limits, or made again afterwards, from kept or remade results in turn. The
cheapest way to do that is a closure with one knapsack row, a small integer program; its optimum is
time that every schedule within the budget spends twice. Ops on neither side run before, after or
twice. The best v is among those that most bytes cross.

The staged program (Checkmate, Jain et al. 2020) knows more, memory at every op, but speaks of
schedules in the base order only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..bits import members
from ..schedule import Schedule
from ..simulate import simulate
from .problem import INF, Builder, Effort
from .staged import TIME_SCALE

if TYPE_CHECKING:
    from ..control import Control
    from ..graph import Graph
    from .problem import Backend, Problem

CANDIDATES = 64  # ops whose crossing bytes are counted, of the fullest and of all
PROGRAMS = 12  # of those with the most crossing bytes
GAP = 1e-3


def any_order_bound(graph: Graph, budget_bytes: int, backend: Backend, control: Control) -> int:
    """Nanoseconds that no schedule of `graph` within the budget undercuts.

    At least the time of the step without recomputation, which is what is known when no time is
    left. `budget_bytes` includes resident bytes.
    """
    base = int(graph.arrays.time.sum())
    best = base
    room = budget_bytes - graph.resident_bytes
    before, after = reach(graph)
    for op in _candidates(graph, room, before, after):
        if control.over:
            break
        cut = _Cut(graph, op, members(before[op]), members(after[op]))
        answer = backend.solve(
            cut.problem(room), Effort(control, control.remaining, GAP, threads=1, seed=0)
        )
        if math.isfinite(answer.bound):  # without a solution the budget is out of reach: no time
            best = max(best, base + math.floor((answer.bound - 1e-3) * cut.ns_per_unit))
    return best


def reach(graph: Graph) -> tuple[list[int], list[int]]:
    """For each op, the ops that it depends on and those that depend on it, as bit sets."""
    arrays, count = graph.arrays, len(graph.ops)
    before, after = [0] * count, [0] * count
    makers = [set(arrays.producer[arrays.inputs(op)].tolist()) for op in range(count)]
    for op in range(count):
        for p in makers[op]:
            before[op] |= before[p] | 1 << p
    for op in reversed(range(count)):
        for p in makers[op]:
            after[p] |= after[op] | 1 << op
    return before, after


def _candidates(graph: Graph, room: int, before: list[int], after: list[int]) -> list[int]:
    """The ops with the most bytes to keep or to remake, those with the most first."""
    during = np.array(simulate(graph, Schedule.keep_everything(graph)).during_bytes)
    over = np.flatnonzero(during > room + graph.resident_bytes)
    if not len(over):
        return []
    fullest = over[np.argsort(-during[over], kind="stable")[:CANDIDATES]]
    spread = over[np.linspace(0, len(over) - 1, min(CANDIDATES, len(over))).astype(np.int64)]
    crossing = {
        int(op): _Cut(graph, int(op), members(before[op]), members(after[op])).crossing_bytes
        for op in np.union1d(fullest, spread)
    }
    chosen = sorted(crossing, key=lambda op: (-crossing[op], op))[:PROGRAMS]
    return [op for op in chosen if crossing[op] > room]


@dataclass(eq=False)
class _Cut:
    """The first run of `op`: what must have run before it, and what must run after it."""

    graph: Graph
    op: int
    before: list[int]
    after: list[int]

    def __post_init__(self) -> None:
        """Sides of all ops: -1 before (and `op` itself), 1 after, 0 on neither side."""
        arrays = self.graph.arrays
        self.side = np.zeros(len(self.graph.ops), dtype=np.int64)
        self.side[[*self.before, self.op]] = -1
        self.side[self.after] = 1
        self.ns_per_unit = max(1, int(arrays.time.sum())) / TIME_SCALE
        self.there = {*arrays.first_inputs(self.op).tolist(), *arrays.made(self.op).tolist()}
        own = int(arrays.size[list(self.there)].sum()) + int(arrays.workspace[self.op])
        self.own_bytes = own - int(arrays.credit[self.op])

    @property
    def crossing_bytes(self) -> int:
        """What `op` takes, and what was made before it and is read after it or stays."""
        arrays = self.graph.arrays
        made = [t for op in self.before for t in arrays.outputs(op).tolist()]
        crossing = self.own_bytes
        for t in made:
            if t in self.there:
                continue
            if arrays.output[t] or (self.side[arrays.users(t)] == 1).any():
                crossing += int(arrays.size[t])
        return crossing

    def problem(self, room: int) -> Problem:
        """The cheapest way across, without what the base time pays for.

        Columns: `kept` per tensor, `early` and `again` per op: it runs before the cut although it
        need not, and after it.
        """
        arrays, side, builder = self.graph.arrays, self.side, Builder()
        useful = self._useful()
        costs = (arrays.time / self.ns_per_unit).tolist()
        early = {op: builder.binary(costs[op]) for op in useful if side[op] == 0}
        again = {
            op: builder.binary(costs[op]) for op in useful if side[op] == 0 or arrays.recompute[op]
        }
        kept = {t: builder.binary() for op in useful for t in arrays.outputs(op).tolist()}
        for op in (*self.after, *again):
            # Here ops that did not run before the cut may run for the first time.
            reads = arrays.inputs(op) if side[op] == -1 else arrays.first_inputs(op)
            for t in reads.tolist():
                p = int(arrays.producer[t])
                if side[p] == 1:
                    continue
                terms = [(kept[t], 1.0)] + ([(again[p], 1.0)] if p in again else [])
                if side[op] == 1:
                    builder.row(terms, 1.0, INF)
                else:
                    builder.row([(again[op], -1.0), *terms], 0.0, INF)
        for op, column in early.items():
            most = INF if arrays.recompute[op] else 1.0
            builder.row([(column, 1.0), (again[op], 1.0)], 1.0, most)
            for p in set(arrays.producer[arrays.inputs(op)].tolist()):
                if p in early:
                    builder.row([(column, -1.0), (early[p], 1.0)], 0.0, INF)
        for t, column in kept.items():
            p = int(arrays.producer[t])
            if p in early:
                builder.row([(column, -1.0), (early[p], 1.0)], 0.0, self._slack(t))
            elif arrays.output[t]:
                builder.row([(column, 1.0)], 1.0, 1.0)
        self._memory(builder, kept, room)
        return builder.problem(-sum(costs[op] for op in early))

    def _slack(self, t: int) -> float:
        """An output of the step stays once it is made, another tensor need not."""
        return 0.0 if self.graph.arrays.output[t] else INF

    def _useful(self) -> list[int]:
        """Ops not after the cut of which somebody after it, or on neither side, needs a result."""
        arrays, side = self.graph.arrays, self.side
        needed = arrays.output != 0
        needed[arrays.producer < 0] = False
        for op in self.after:
            needed[arrays.inputs(op)] = True
        found = []
        for op in reversed(range(len(self.graph.ops))):
            if side[op] == 1 or (side[op] == -1 and not needed[arrays.outputs(op)].any()):
                continue
            found.append(op)
            needed[arrays.inputs(op)] = True
        return found

    def _memory(self, builder: Builder, kept: dict[int, int], room: int) -> None:
        """What is there while `op` runs for the first time."""
        arrays, scale = self.graph.arrays, float(max(1, room))
        terms = [(c, float(arrays.size[t])) for t, c in kept.items() if t not in self.there]
        credit = float(arrays.credit[self.op])
        column = kept.get(int(arrays.overwrites[self.op])) if credit else None
        if column is not None:  # what is kept is not overwritten
            terms.append((column, credit))
        terms = [(c, size / scale) for c, size in terms if size > 0.0]
        builder.row(terms, -INF, (room - self.own_bytes) / scale)
