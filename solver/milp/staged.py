"""The staged rematerialization program over any cut of the base order into stages.

Frontier-advancing stages as in Checkmate (Jain et al. 2020, eqs. 1 to 8), in a sparse form.
`S[d,k]`: tensor d is carried into stage k. `R[p,k]`: op p, of an earlier stage, runs again in
stage k, before its base ops. With one exact stage per op this is Checkmate's model; with coarser
stages it is a relaxation of it, so its optimum is a lower bound.

Inside an exact stage, liveness needs no products: with c1 < c2 < ... the consumers of d that can
run in the stage, `L[d,q]` says that d lives on after its q-th consumer, so `L[d,q] >= L[d,q+1]`,
`L[d,q] >= R[c_{q+1}]`, and the last one is `S[d,k+1]`; `U` is the running sum of live bytes.
Both are continuous.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .problem import INF, Builder, Problem
from .stages import Relevance

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..graph import Graph
    from .stages import Stage

    Bools = npt.NDArray[np.bool_]

MEMORY_SCALE = 1000.0
TIME_SCALE = 10000.0


@dataclass(frozen=True, eq=False)
class StagedProgram:
    """A built program and the meaning of its columns.

    Attributes
    ----------
    carry, recompute
        Per stage: column of S by tensor, and of R by op.
    free
        Tensors treated as always in memory (no S).
    ns_per_unit
        Nanoseconds of one unit of the objective.
    """

    graph: Graph
    stages: tuple[Stage, ...]
    problem: Problem
    carry: tuple[dict[int, int], ...]
    recompute: tuple[dict[int, int], ...]
    free: Bools
    ns_per_unit: float

    def carried(self, values: npt.NDArray[np.float64]) -> Bools:
        """(stages, tensors): may be in memory when the stage begins, by a solution."""
        result = np.zeros((len(self.stages), len(self.graph.tensors)), dtype=np.bool_)
        for k, columns in enumerate(self.carry):
            result[k] = self.free
            for tensor, column in columns.items():
                result[k, tensor] = values[column] > 0.5
        return result

    def bound_ns(self, bound: float) -> int:
        """A backend's bound in whole nanoseconds, less a margin for its tolerances."""
        margin = 1e-7 * self.problem.offset
        return math.ceil((bound - margin) * self.ns_per_unit)

    def again(self, values: npt.NDArray[np.float64]) -> Bools:
        """(stages, ops): runs again in the stage, by a solution."""
        result = np.zeros((len(self.stages), len(self.graph.ops)), dtype=np.bool_)
        for k, columns in enumerate(self.recompute):
            for op, column in columns.items():
                result[k, op] = values[column] > 0.5
        return result

    def recompute_ns(self, values: npt.NDArray[np.float64]) -> list[int]:
        """Nanoseconds of recomputation per stage, by a solution."""
        time = self.graph.arrays.time
        return [
            int(sum(time[op] for op, column in columns.items() if values[column] > 0.5))
            for columns in self.recompute
        ]

    def start_values(self, computes: Sequence[int]) -> dict[int, float]:
        """Values of S and R that describe a schedule, as a start for the solver."""
        graph = self.graph
        arrays = graph.arrays
        values = {c: 0.0 for columns in (*self.carry, *self.recompute) for c in columns.values()}
        firsts = np.array([stage.first for stage in self.stages])
        # Recomputations belong to the stage of the next base op.
        stage_of = np.zeros(len(computes), dtype=np.int64)
        seen: set[int] = set()
        pending = 0
        for position, op in enumerate(computes):
            if op in seen:
                continue
            seen.add(op)
            stage_of[pending : position + 1] = np.searchsorted(firsts, op, side="right") - 1
            pending = position + 1
        stage_of[pending:] = len(self.stages) - 1
        first_of_stage = np.searchsorted(stage_of, np.arange(len(self.stages)))
        seen.clear()
        for position, op in enumerate(computes):
            k = int(stage_of[position])
            if op in seen and op in self.recompute[k]:
                values[self.recompute[k][op]] = 1.0
            seen.add(op)
        # Walk backwards to find what is live when each stage begins.
        needed = np.zeros(len(graph.tensors), dtype=np.bool_)
        for position in range(len(computes) - 1, -1, -1):
            op = computes[position]
            needed[arrays.outputs(op)] = False
            needed[arrays.inputs(op)] = True
            k = int(stage_of[position])
            if position == first_of_stage[k]:
                for tensor, column in self.carry[k].items():
                    if needed[tensor]:
                        values[column] = 1.0
        return values


def build(graph: Graph, budget_bytes: int, stages: tuple[Stage, ...], free: Bools) -> StagedProgram:
    """Build the program for `budget_bytes`, resident bytes included."""
    return _Build(graph, budget_bytes, stages, free).run()


class _Build:
    def __init__(
        self, graph: Graph, budget_bytes: int, stages: tuple[Stage, ...], free: Bools
    ) -> None:
        self.graph = graph
        self.stages = stages
        self.free = free
        self.arrays = graph.arrays
        self.builder = Builder()
        room = max(1, budget_bytes - graph.resident_bytes)
        self.unit = room / MEMORY_SCALE
        # A hair of slack keeps rounding in the solver from cutting off a tight schedule.
        self.room = MEMORY_SCALE * (1.0 + 1e-9)
        self.base_ns = max(1, int(self.arrays.time.sum()))
        self.size = self.arrays.size / self.unit
        self.carry: list[dict[int, int]] = []
        self.recompute: list[dict[int, int]] = []
        # Outputs produced before each op: they stay in memory.
        self.pinned = np.zeros(len(graph.ops) + 1)
        for op in range(len(graph.ops)):
            made = self.arrays.outputs(op)
            kept = self.size[made][self.arrays.output[made] != 0].sum()
            self.pinned[op + 1] = self.pinned[op] + kept

    def run(self) -> StagedProgram:
        per_unit = self.base_ns / TIME_SCALE
        for k, stage in enumerate(self.stages):
            self._columns(k, stage, per_unit)
        for k, stage in enumerate(self.stages):
            self._dependencies(k, stage)
            if stage.exact:
                self._exact_memory(k, stage.first)
            else:
                self._end_memory(k, stage.last)
        return StagedProgram(
            graph=self.graph,
            stages=self.stages,
            problem=self.builder.problem(self.base_ns / per_unit),
            carry=tuple(self.carry),
            recompute=tuple(self.recompute),
            free=self.free,
            ns_per_unit=per_unit,
        )

    def _columns(self, k: int, stage: Stage, per_unit: float) -> None:
        if k == 0:
            self.carry.append({})
            self.recompute.append({})
            return
        relevance = Relevance.at(self.graph, stage.first, self.free)
        tensors = np.flatnonzero(relevance.tensors & ~self.free).tolist()
        self.carry.append({t: self.builder.binary() for t in tensors})
        costs = self.arrays.time / per_unit
        ops = np.flatnonzero(relevance.ops).tolist()
        self.recompute.append({op: self.builder.binary(float(costs[op])) for op in ops})

    def _dependencies(self, k: int, stage: Stage) -> None:
        if k == 0:
            return
        arrays, row = self.arrays, self.builder.row
        carry, recompute = self.carry[k], self.recompute[k]
        read = arrays.in_idx[arrays.in_ptr[stage.first] : arrays.in_ptr[stage.last + 1]]
        for t in np.unique(read).tolist():
            if t in carry and arrays.producer[t] < stage.first:
                row([(carry[t], 1.0), *self._made(k, t, 1.0)], 1.0, INF)
        for op, column in recompute.items():
            for t in arrays.inputs(op).tolist():
                if t in carry:
                    row([(column, -1.0), (carry[t], 1.0), *self._made(k, t, 1.0)], 0.0, INF)
            if stage.exact:  # a carried tensor is of no use to an op that makes it anew
                for t in arrays.outputs(op).tolist():
                    if t in carry:
                        row([(column, 1.0), (carry[t], 1.0)], -INF, 1.0)
        if k == 1:
            return
        before = self.carry[k - 1]
        for t, column in carry.items():
            if t in before:
                row([(column, -1.0), (before[t], 1.0), *self._made(k - 1, t, 1.0)], 0.0, INF)

    def _made(self, k: int, tensor: int, sign: float) -> list[tuple[int, float]]:
        column = self.recompute[k].get(int(self.arrays.producer[tensor]))
        return [] if column is None else [(column, sign)]

    def _during(self, op: int) -> float:
        """Bytes during base op `op` that no decision changes: reads, results, workspace."""
        arrays = self.arrays
        read, made = arrays.inputs(op), arrays.outputs(op)
        own = self.size[read][~self._counted_apart(read)].sum() + self.size[made].sum()
        return float(own + arrays.workspace[op] / self.unit + self.pinned[op])

    def _counted_apart(self, tensors: npt.NDArray[np.int64]) -> Bools:
        """Outputs are in `pinned`; other free tensors count nothing, which is a relaxation."""
        return self.free[tensors]

    def _end_memory(self, k: int, last: int) -> None:
        """During the last base op of a stage, all that the next stage is handed is in memory."""
        if k + 1 == len(self.stages):
            return
        touched = {*self.arrays.inputs(last).tolist(), *self.arrays.outputs(last).tolist()}
        terms = [(c, float(self.size[t])) for t, c in self.carry[k + 1].items() if t not in touched]
        self.builder.row(terms, -INF, self.room - self._during(last))

    def _exact_memory(self, k: int, base: int) -> None:
        """Follow the live bytes through the recomputations of stage k and its one base op."""
        arrays, builder = self.arrays, self.builder
        carry, recompute = self.carry[k], self.recompute[k]
        following = self.carry[k + 1] if k + 1 < len(self.stages) else {}
        events = sorted(recompute)
        consumers: dict[int, list[int]] = {}
        for op in events:
            for t in arrays.inputs(op).tolist():
                if not self.free[t]:
                    consumers.setdefault(t, []).append(op)
        base_reads = set(arrays.inputs(base).tolist())
        change: dict[int, list[tuple[int, float]]] = {op: [] for op in events}
        shift: dict[int, float] = dict.fromkeys(events, 0.0)

        def add(op: int, column: int | None, constant: float, weight: float) -> None:
            if column is not None:
                change[op].append((column, weight))
            shift[op] += constant * weight

        tensors = set(carry) | {
            t for op in events for t in arrays.outputs(op).tolist() if not self.free[t]
        }
        for t in sorted(tensors):
            producer = int(arrays.producer[t])
            made = producer in recompute
            size = float(self.size[t])
            used = consumers.get(t, [])
            start = carry.get(t)
            if t in base_reads:
                if made:  # in memory from its production, or all along, until the base op
                    add(producer, None, 1.0, size)
                    if start is not None:
                        add(producer, start, 0.0, -size)
                continue
            # levels[q] = (column, constant) that says t lives on after its q-th consumer.
            levels: list[tuple[int | None, float]] = []
            for q in range(len(used)):
                first_without_production = q == 0 and not made
                column = start if first_without_production else builder.continuous(0.0, 1.0)
                levels.append((column, 0.0))
            levels.append((following.get(t), 0.0))
            for q, op in enumerate(used):
                here, after = levels[q][0], levels[q + 1][0]
                if here is None:
                    continue
                builder.row([(here, 1.0), (recompute[op], -1.0)], 0.0, INF)
                if after is not None:
                    builder.row([(here, 1.0), (after, -1.0)], 0.0, INF)
            if made:
                add(producer, levels[0][0], levels[0][1], size)
                if start is not None:
                    add(producer, start, 0.0, -size)
            for q, op in enumerate(used):
                add(op, levels[q + 1][0], levels[q + 1][1], size)
                add(op, levels[q][0], levels[q][1], -size)
        self._running_sum(k, base, events, change, shift)

    def _running_sum(
        self,
        k: int,
        base: int,
        events: list[int],
        change: dict[int, list[tuple[int, float]]],
        shift: dict[int, float],
    ) -> None:
        builder, arrays = self.builder, self.arrays
        carry, recompute = self.carry[k], self.recompute[k]
        live = builder.continuous(0.0, self.room)
        pinned = float(self.pinned[base])
        terms = [(column, -float(self.size[t])) for t, column in carry.items()]
        builder.row([(live, 1.0), *terms], pinned, pinned)
        for op in events:
            made = float(self.size[arrays.outputs(op)].sum())
            during = made + float(arrays.rerun_workspace[op]) / self.unit
            if during > 0.0:
                builder.row([(live, 1.0), (recompute[op], during)], -INF, self.room)
            if not change[op] and shift[op] == 0.0:
                continue
            after = builder.continuous(0.0, self.room)
            merged: dict[int, float] = {}
            for column, weight in change[op]:
                merged[column] = merged.get(column, 0.0) - weight
            row = [(after, 1.0), (live, -1.0), *((c, w) for c, w in merged.items() if w != 0.0)]
            builder.row(row, shift[op], shift[op])
            live = after
        made = float(self.size[arrays.outputs(base)].sum())
        limit = self.room - made - float(arrays.workspace[base]) / self.unit
        builder.row([(live, 1.0)], -INF, limit)
