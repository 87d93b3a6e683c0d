"""Memory rows inside coarse stages.

In a coarse stage k the program does not say when what happens. Yet during a base op b of it, a
tensor that was made before b is in memory if a later base op of the stage reads it, or if it is
carried into the next stage, unless its op runs again in k. So with R[p,k], also for ops whose first
run is in k, and `T[d,k] >= S[d,k+1] - R[p,k]` (T: carried all through what is left of k),

    sum m_d (1 - R[p,k]) over d read later in k + sum m_d T[d,k] over the other d <= budget - own(b)

holds during b. Without these rows only the ends of stages have one; with them a coarse program
knows most of what a fine one does. They are made where a solution of the linear program breaks
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .problem import INF

if TYPE_CHECKING:
    from ..array_types import Floats, Ints
    from .staged import StagedProgram
    from .stages import Stage

TOLERANCE = 1e-3  # of rows scaled to MEMORY_SCALE
PER_STAGE = 4
APART = 3


@dataclass(frozen=True, eq=False)
class _Lives:
    """Tensors that the rows of a stage count: made at or before `begin - 1`, read last at `end`.

    Attributes
    ----------
    tensor, begin, end
        During base ops begin..end-1 a later op of the stage needs the tensor; end == begin where
        none does.
    carried
        Column of S in the next stage, -1 if none.
    again
        Column of R in this stage, -1 if none (yet).
    """

    tensor: Ints
    begin: Ints
    end: Ints
    carried: Ints
    again: Ints


@dataclass
class Interior:
    """Rows inside the coarse stages of one program."""

    program: StagedProgram
    own: dict[tuple[int, int], int] = field(default_factory=dict)
    through: dict[tuple[int, int], int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        stages = enumerate(self.program.stages)
        self._lives = {k: self._of(k, s) for k, s in stages if s.first < s.last}
        touching = np.array([self.program.memory.during(op) for op in range(self._count)])
        self._during = touching

    @property
    def _count(self) -> int:
        return len(self.program.graph.ops)

    def separate(self, values: Floats) -> int:
        """Add the rows that `values` breaks worst, a few per stage; how many were added."""
        values = np.append(values, 0.0)  # what column -1 is read as
        return sum(self._separate(k, lives, values) for k, lives in self._lives.items())

    def complete(self, values: Floats, again: set[tuple[int, int]]) -> None:
        """Write the columns made here, S and R being there; `again` as `starts` finds it."""
        for key, column in self.own.items():
            values[column] = 1.0 if key in again else 0.0
        for (k, t), column in self.through.items():
            repeat = self._again(k, int(self.program.graph.arrays.producer[t]))
            rerun = 0.0 if repeat < 0 else values[repeat]
            values[column] = max(0.0, values[self.program.carry[k + 1][t]] - rerun)

    def _again(self, k: int, op: int) -> int:
        """Column that says whether `op` runs again in stage k; -1 if there is none."""
        if op < self.program.stages[k].first:
            return self.program.recompute[k].get(op, -1)
        return self.own.get((k, op), -1)

    def _of(self, k: int, stage: Stage) -> _Lives:
        program = self.program
        arrays = program.graph.arrays
        following = program.carry[k + 1] if k + 1 < len(program.stages) else {}
        last: dict[int, int] = {}
        for op in range(stage.first, stage.last + 1):
            for t in arrays.first_inputs(op).tolist():
                last[t] = op
        tensors = [t for t in sorted({*last, *following}) if not program.free[t]]
        producer = arrays.producer[tensors] if tensors else np.zeros(0, dtype=np.int64)
        begin = np.maximum(producer + 1, stage.first)
        end = np.array([last.get(t, -1) for t in tensors], dtype=np.int64)
        return _Lives(
            np.array(tensors, dtype=np.int64),
            begin,
            np.maximum(begin, end),
            np.array([following.get(t, -1) for t in tensors], dtype=np.int64),
            np.array([self._again(k, int(p)) for p in producer], dtype=np.int64),
        )

    def _separate(self, k: int, lives: _Lives, values: Floats) -> int:
        program, stage = self.program, self.program.stages[k]
        arrays, size = program.graph.arrays, program.memory.size
        first, last = stage.first, stage.last
        rerun = values[lives.again]
        needed = size[lives.tensor] * (1.0 - rerun)
        passing = size[lives.tensor] * np.maximum(0.0, values[lives.carried] - rerun)
        change = np.zeros(last - first + 2)
        np.add.at(change, lives.begin - first, needed)
        np.add.at(change, lives.end - first, passing - needed)
        change[-1] = 0.0
        activity = np.cumsum(change)[: last - first]  # the last op has a row at the end already
        # What an op reads and does not overwrite is in `during`.
        place = np.full(len(size), -1, dtype=np.int64)
        place[lives.tensor] = np.arange(len(lives.tensor))
        reads = slice(arrays.in_ptr[first], arrays.in_ptr[last])
        reader = np.repeat(np.arange(first, last), np.diff(arrays.in_ptr[first : last + 1]))
        at = place[arrays.in_idx[reads]]
        left = arrays.in_idx[reads] != arrays.overwrites[reader]
        counts = (at >= 0) & arrays.in_first[reads] & left
        reader, at = reader[counts], at[counts]
        counted = np.where(reader < lives.end[at], needed[at], passing[at])
        np.subtract.at(activity, reader - first, counted)
        excess = activity + self._during[first:last] - program.memory.room
        added = 0
        while added < PER_STAGE:
            worst = int(excess.argmax()) if len(excess) else 0
            if not len(excess) or excess[worst] <= TOLERANCE:
                break
            excess[max(0, worst - APART) : worst + APART + 1] = 0.0
            if first + worst not in self.done:
                self._row(k, lives, first + worst)
                added += 1
        return added

    def _row(self, k: int, lives: _Lives, op: int) -> None:
        program = self.program
        memory, builder = program.memory, program.builder
        self.done.add(op)
        held = memory.held(op)
        limit = memory.room - float(self._during[op])
        terms: dict[int, float] = {}
        inside = np.flatnonzero(
            (lives.begin <= op) & ((lives.end > op) | (lives.carried >= 0))
        ).tolist()
        for i in inside:
            t = int(lives.tensor[i])
            if t in held:
                continue
            size = float(memory.size[t])
            if op < lives.end[i]:
                limit -= size
                column = self._rerun(k, lives, i)
                if column >= 0:
                    terms[column] = terms.get(column, 0.0) - size
            else:
                column = self._through(k, lives, i)
                terms[column] = terms.get(column, 0.0) + size
        builder.row(list(terms.items()), -INF, limit)

    def _rerun(self, k: int, lives: _Lives, i: int) -> int:
        """Column of R of the tensor's op in stage k, made if its first run is there too."""
        program = self.program
        arrays = program.graph.arrays
        op = int(arrays.producer[lives.tensor[i]])
        if lives.again[i] < 0 and op >= program.stages[k].first and arrays.recompute[op]:
            if (k, op) not in self.own:
                cost = float(arrays.time[op] / program.ns_per_unit)
                self.own[k, op] = program.builder.binary(cost)
            lives.again[i] = self.own[k, op]
        return int(lives.again[i])

    def _through(self, k: int, lives: _Lives, i: int) -> int:
        """Column of T, or of S where nothing can make the tensor anew."""
        t, carried = int(lives.tensor[i]), int(lives.carried[i])
        rerun = self._rerun(k, lives, i)
        if rerun < 0:
            return carried
        if (k, t) not in self.through:
            builder = self.program.builder
            column = builder.implied()
            builder.row([(column, 1.0), (carried, -1.0), (rerun, 1.0)], 0.0, INF)
            self.through[k, t] = column
        return self.through[k, t]
