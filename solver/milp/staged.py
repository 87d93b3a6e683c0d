"""The staged rematerialization program over any cut of the base order into stages.

Frontier-advancing stages as in Checkmate (Jain et al. 2020, eqs. 1 to 8), in a sparse form.
`S[d,k]`: tensor d is carried into stage k. `R[p,k]`: op p, of an earlier stage, runs again in
stage k, before its base ops. With one exact stage per op this is Checkmate's model; with coarser
stages it is a relaxation of it, so its optimum is a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..control import Control
from .events import Events
from .memory import Memory
from .problem import INF, Builder
from .stages import Relevance

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..array_types import Bools, Floats
    from ..graph import Graph
    from .events import Event
    from .problem import Problem
    from .stages import Stage

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
    ns_per_unit, offset
        Nanoseconds of one unit of the objective, and the base time in that unit.
    builder, memory
        Columns and rows, open for more of them.
    events
        Rows of the exact stages that are made where they bind; None if all are there.
    """

    graph: Graph
    stages: tuple[Stage, ...]
    builder: Builder
    memory: Memory
    carry: tuple[dict[int, int], ...]
    recompute: tuple[dict[int, int], ...]
    free: Bools
    ns_per_unit: float
    offset: float
    events: Events | None = None

    @property
    def problem(self) -> Problem:
        """Columns and rows as they are now."""
        return self.builder.problem(self.offset)

    def carried(self, values: Floats) -> Bools:
        """(stages, tensors): may be in memory when the stage begins, by a solution."""
        result = np.zeros((len(self.stages), len(self.graph.tensors)), dtype=np.bool_)
        for k, columns in enumerate(self.carry):
            result[k] = self.free
            for tensor, column in columns.items():
                result[k, tensor] = values[column] > 0.5
        return result

    def bound_ns(self, bound: float) -> int:
        """A backend's bound in whole nanoseconds, less a margin for its tolerances."""
        margin = 1e-7 * self.offset
        return math.ceil((bound - margin) * self.ns_per_unit)

    def again(self, values: Floats) -> Bools:
        """(stages, ops): runs again in the stage, by a solution."""
        result = np.zeros((len(self.stages), len(self.graph.ops)), dtype=np.bool_)
        for k, columns in enumerate(self.recompute):
            for op, column in columns.items():
                result[k, op] = values[column] > 0.5
        return result

    def recompute_ns(self, values: Floats) -> list[int]:
        """Nanoseconds of recomputation per stage, by a solution."""
        time = self.graph.arrays.time
        return [
            int(sum(time[op] for op, column in columns.items() if values[column] > 0.5))
            for columns in self.recompute
        ]


def build(
    graph: Graph,
    budget_bytes: int,
    stages: tuple[Stage, ...],
    free: Bools,
    known: Collection[Event] | None = None,
    control: Control | None = None,
) -> StagedProgram:
    """Build the program for `budget_bytes`, resident bytes included.

    Parameters
    ----------
    known
        Rows of exact stages to begin with, the others to be made where they bind; None: all.
    control
        Ends the building with `TimeoutError`: with thousands of exact stages it takes minutes.
    """
    return _Build(graph, budget_bytes, stages, free, known, control or Control()).run()


class _Build:
    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        stages: tuple[Stage, ...],
        free: Bools,
        known: Collection[Event] | None,
        control: Control,
    ) -> None:
        self.graph = graph
        self.control = control
        self.stages = stages
        self.free = free
        self.arrays = graph.arrays
        self.builder = Builder()
        self.memory = Memory.of(graph, free, self.builder, budget_bytes - graph.resident_bytes)
        self.known = known or ()
        lazy = known is not None
        self.events = Events(graph, self.memory, self.builder) if lazy else None
        self.base_ns = max(1, int(self.arrays.time.sum()))
        self.carry: list[dict[int, int]] = []
        self.recompute: list[dict[int, int]] = []

    def run(self) -> StagedProgram:
        per_unit = self.base_ns / TIME_SCALE
        for k, stage in enumerate(self.stages):
            self._go_on()
            self._columns(k, stage, per_unit)
        for k, stage in enumerate(self.stages):
            self._go_on()
            self._dependencies(k, stage)
            following = self.carry[k + 1] if k + 1 < len(self.stages) else {}
            if stage.exact:
                carry, recompute = self.carry[k], self.recompute[k]
                if self.events is None:
                    self.memory.exact_rows(stage.first, carry, recompute, following)
                else:
                    self.events.add_stage(stage.first, carry, recompute, following, self.known)
            elif following:
                self.memory.end_row(stage.last, following)
        return StagedProgram(
            graph=self.graph,
            stages=self.stages,
            builder=self.builder,
            memory=self.memory,
            carry=tuple(self.carry),
            recompute=tuple(self.recompute),
            free=self.free,
            ns_per_unit=per_unit,
            offset=self.base_ns / per_unit,
            events=self.events,
        )

    def _go_on(self) -> None:
        if self.control.over:
            raise TimeoutError("the program is too large to be built in time")

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
        for t in arrays.first_inputs_of(stage.first, stage.last).tolist():
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
