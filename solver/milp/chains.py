"""Chain cuts: a needed tensor must come from somewhere.

Let tensor d0 be needed in stage k, and let d0, d1, ..., dm be a chain: op p(i) makes d(i) and reads
d(i+1). Choose for each tensor of the chain a stage a(i) <= k. In memory at a(i), or made from a
d(i+1) that the choice leaves open: one of these must happen, so

    sum_i S[d(i), a(i)] + sum_i sum_{a(i) <= j < a(i+1)} R[p(i), j] >= 1,

the last sum running up to j = k. These are the cuts of a flow along the chain through the stages.
They follow from the rows of the program for whole values, not for fractions: there half of d1 can
serve twice to make both halves of d0. They keep what a coarse program knows when its stages are
split. Where the need is conditional (to run p again in stage k, or to carry d0 on), its variable
stands for the 1. The most violated cut of every need is found by a shortest path over (tensor,
stage).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from .problem import INF

if TYPE_CHECKING:
    from ..array_types import Bools, Floats, Ints
    from .staged import StagedProgram

VIOLATION = 0.02


@njit(cache=True, nogil=True)
def _shortest(
    last: int, order: Ints, producer: Ints, home: Ints, in_ptr: Ints, in_idx: Ints,
    skip: Bools, recompute: Ints, carried: Floats, again: Floats,
    least: Floats, next_tensor: Ints, next_stage: Ints,
) -> None:  # fmt: skip
    """Fill least[t, a]: the smallest left-hand side of a chain from t that starts at stage a.

    `carried` and `again` are S by (tensor, stage) and R by (op, stage); `last` is the stage of the
    need. `next_tensor` and `next_stage` say how the chain goes on; -1: it ends.
    """
    runs = np.zeros(last + 2)
    for t in order:
        op = producer[t]
        begin = home[t] + 1
        if op < 0 or skip[t] or begin > last:
            continue
        for k in range(last + 1):
            runs[k + 1] = runs[k] + again[op, k]
        for a in range(begin, last + 1):
            least[t, a] = runs[last + 1] - runs[a]
            next_tensor[t, a] = -1
            next_stage[t, a] = last + 1
        if recompute[op]:
            for i in range(in_ptr[op], in_ptr[op + 1]):
                e = in_idx[i]
                first = home[e] + 1
                if producer[e] < 0 or skip[e] or first > last:
                    continue
                best, where = np.inf, last + 1  # later stages of e: runs of op between count
                for a in range(last, begin - 1, -1):
                    if a < last and a + 1 >= first and runs[a + 1] + least[e, a + 1] < best:
                        best, where = runs[a + 1] + least[e, a + 1], a + 1
                    if best - runs[a] < least[t, a] - 1e-12:
                        least[t, a] = best - runs[a]
                        next_tensor[t, a], next_stage[t, a] = e, where
                best, where = np.inf, last + 1  # the same stage or an earlier one
                for b in range(first, begin):
                    if b <= last and least[e, b] < best:
                        best, where = least[e, b], b
                for a in range(begin, last + 1):
                    if a >= first and least[e, a] < best:
                        best, where = least[e, a], a
                    if best < least[t, a] - 1e-12:
                        least[t, a] = best
                        next_tensor[t, a], next_stage[t, a] = e, where
        for a in range(begin, last + 1):
            least[t, a] += carried[t, a]


@dataclass
class Cut:
    """sum of coefficient * column >= lower, by `violation` not so."""

    violation: float
    terms: dict[int, float]
    lower: float


class Chains:
    """Chain cuts of one program; `rows` are the numbers of those that were added."""

    def __init__(self, program: StagedProgram) -> None:
        self.program = program
        self.rows: list[int] = []
        arrays = program.graph.arrays
        firsts = np.array([stage.first for stage in program.stages])
        self._home = np.searchsorted(firsts, arrays.producer, side="right") - 1
        self._order = np.argsort(arrays.producer, kind="stable")
        self._skip = program.free | (arrays.producer < 0)
        self._reads = [arrays.first_inputs_of(s.first, s.last) for s in program.stages]

    def separate(self, values: Floats, most: int) -> int:
        """Add up to `most` cuts that `values` violates; how many were added."""
        program = self.program
        stages = len(program.stages)
        carried = np.ones((len(program.graph.tensors), stages))
        again = np.zeros((len(program.graph.ops), stages))
        for k in range(1, stages):
            columns = program.carry[k]
            carried[list(columns), k] = values[list(columns.values())]
            columns = program.recompute[k]
            again[list(columns), k] = values[list(columns.values())]
        cuts = [cut for k in range(1, stages) for cut in self._stage(k, values, carried, again)]
        cuts.sort(key=lambda cut: -cut.violation)
        for cut in cuts[:most]:
            self.rows.append(len(program.builder.row_lower))
            program.builder.row(list(cut.terms.items()), cut.lower, INF)
        return len(cuts[:most])

    def _stage(self, k: int, values: Floats, carried: Floats, again: Floats) -> list[Cut]:
        """The violated cuts of all needs in stage k."""
        program = self.program
        arrays = program.graph.arrays
        shape = (len(program.graph.tensors), k + 1)
        least = np.full(shape, np.inf)
        next_tensor = np.full(shape, -1, dtype=np.int64)
        next_stage = np.full(shape, k + 1, dtype=np.int64)
        _shortest(
            k, self._order, arrays.producer, self._home, arrays.in_ptr, arrays.in_idx, self._skip,
            arrays.recompute, carried, again, least, next_tensor, next_stage,
        )  # fmt: skip
        need, column = self._needs(k, values)
        start = least.argmin(axis=1)
        violation = need - least[np.arange(len(least)), start]
        cuts = []
        for t in np.flatnonzero((violation > VIOLATION) & ~self._skip).tolist():
            terms = self._terms(t, int(start[t]), next_tensor, next_stage)
            if terms is None:
                continue
            lower = 1.0
            if column[t] >= 0:
                lower = 0.0
                terms[int(column[t])] = terms.get(int(column[t]), 0.0) - 1.0
            cuts.append(Cut(float(violation[t]), terms, lower))
        return cuts

    def _needs(self, k: int, values: Floats) -> tuple[Floats, Ints]:
        """Per tensor: how much of it stage k needs, and the column that says so (-1: 1)."""
        program = self.program
        arrays = program.graph.arrays
        need = np.zeros(len(program.graph.tensors))
        column = np.full(len(need), -1, dtype=np.int64)
        for op, c in program.recompute[k].items():
            if values[c] > VIOLATION:
                for t in arrays.inputs(op).tolist():
                    if values[c] > need[t]:
                        need[t], column[t] = values[c], c
        if k + 1 < len(program.stages):
            for t, c in program.carry[k + 1].items():
                if values[c] > need[t]:
                    need[t], column[t] = values[c], c
        need[self._reads[k]], column[self._reads[k]] = 1.0, -1
        need[self._home >= k] = 0.0
        return need, column

    def _terms(
        self, t: int, stage: int, next_tensor: Ints, next_stage: Ints
    ) -> dict[int, float] | None:
        """The left-hand side of the cut that begins with tensor t at `stage`."""
        program = self.program
        producer = program.graph.arrays.producer
        terms: dict[int, float] = {}
        while t >= 0:
            carry = program.carry[stage].get(t)
            if carry is None:
                return None
            terms[carry] = terms.get(carry, 0.0) + 1.0
            op, after = int(producer[t]), int(next_stage[t, stage])
            for j in range(stage, after):
                column = program.recompute[j].get(op)
                if column is not None:
                    terms[column] = terms.get(column, 0.0) + 1.0
            t, stage = int(next_tensor[t, stage]), after
        return terms
