"""Checkmate as published: Jain et al. 2020 (arXiv 1910.02653), its integer program and rounding.

Stage t ends with op t. R[t, i]: op i runs in stage t; S[t, i]: its results are kept from stage
t - 1 to stage t; FREE[t, i, k]: they are freed right after op k in stage t; U[t, k]: bytes while
op k runs (eqs. 1 to 7, frontier-advancing stages):

    min sum C_i R[t, i],  R[t, t] = 1
    R[t, j] <= R[t, i] + S[t, i]                  for each edge (i, j)
    S[t, i] <= R[t-1, i] + S[t-1, i]
    U[t, k+1] = U[t, k] - sum of M_i FREE[t, i, k] + M_{k+1} R[t, k+1] <= budget
    1 - FREE[t, i, k] <= (1 - R[t, k]) + S[t+1, i] + sum of R[t, j] over later users j of i
                      <= kappa (1 - FREE[t, i, k])

Rows and columns grow with the square of the ops: `auto` solves the same problem in another form.
An op with several results counts as one node that has all of their bytes, as in the original; those
that are outputs of the step stay, and such an op runs once.

`checkmate_lp` is their two-phase rounding (section 5, Algorithm 2): solve the relaxation for
(1 - eps) of the budget, keep what has S >= 1/2, recompute the least that this asks for. The
relaxation is that of the sparse form, which is at least as tight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..control import Control
from ..errors import NoPlanError
from ..milp.highs import Highs
from ..milp.problem import INF, Builder, Effort
from ..milp.staged import build
from ..milp.stages import every_op, free_tensors
from ..realise import Tables
from ..schedule import Schedule
from ..search.anneal import Search
from .base import (
    Candidate,
    NotApplicableError,
    base_order,
    choose,
    evaluate,
    everything_fits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..array_types import Floats
    from ..graph import Graph
    from ..milp.problem import Problem

MOST_OPS = 700  # about a million columns; more takes minutes to write down
READ_A_SECOND = 50_000  # nonzeros; 2.2 million took 25 s of a core without presolve, longer with it
GAP = 1e-4
ALLOWANCES = (0.0, 0.05, 0.1, 0.2, 0.3)
SCALE = 10000.0


def checkmate(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """The best schedule that HiGHS finds for the published program in the time there is.

    Raises
    ------
    NotApplicableError
        Without a budget, or on more than `MOST_OPS` ops.
    NoPlanError
        If the time does not suffice to read the program, when HiGHS cannot be stopped.
    """
    everything = everything_fits(graph, budget_bytes, "checkmate", MOST_OPS)
    if everything is not None or budget_bytes is None:
        return everything
    control = control or Control()
    program = Published(graph, budget_bytes)
    problem = program.problem()
    if len(problem.index) > READ_A_SECOND * control.remaining:
        raise NoPlanError(
            f"HiGHS reads the {problem.columns:,} columns of the published program for longer than "
            f"the {control.remaining:.0f} s there are"
        )
    answer = Highs().solve(problem, Effort(control, control.remaining, GAP, threads=1, seed=0))
    if answer.values is None:
        return Schedule.keep_everything(graph)
    tables = Tables.of(graph)
    computes = np.array(program.computes(answer.values), dtype=np.int64)
    return evaluate(graph, tables, computes).schedule


def checkmate_lp(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Two-phase rounding of the relaxation; None of the allowances may meet the budget.

    Raises
    ------
    NotApplicableError
        Without a budget.
    """
    if budget_bytes is None:
        raise NotApplicableError("checkmate_lp needs a budget")
    return choose(_rounded(graph, budget_bytes, control or Control()), budget_bytes, control)


def _rounded(graph: Graph, budget_bytes: int, control: Control) -> Iterator[Candidate]:
    tables = Tables.of(graph)
    yield base_order(graph, tables)
    search = Search(graph, 0)
    firsts = np.arange(len(graph.ops), dtype=np.int64)
    for allowance in ALLOWANCES:
        room = int((1 - allowance) * (budget_bytes - graph.resident_bytes))
        free = free_tensors(graph, room, 0.0)
        every = every_op(graph)
        try:
            program = build(graph, room + graph.resident_bytes, every, free, control=control)
        except TimeoutError:
            return
        answer = Highs().solve(
            replace(program.problem, integer=np.zeros_like(program.problem.integer)),
            Effort(control, control.remaining, GAP, threads=1, seed=0),
        )
        if answer.values is None:
            return
        carried = program.carried(answer.values)
        found = search.realise_carried(firsts, carried, np.ones((len(firsts),) * 2, dtype=np.bool_))
        if found is not None:
            yield evaluate(graph, tables, np.array(found.computes, dtype=np.int64))


class Published:
    """The program of `graph` for a budget, and the schedule of a solution."""

    def __init__(self, graph: Graph, budget_bytes: int) -> None:
        self.graph = graph
        arrays, count = graph.arrays, len(graph.ops)
        self.count = count
        producer = arrays.producer
        self.reads = [sorted({int(producer[t]) for t in arrays.inputs(op)}) for op in range(count)]
        self.users: list[list[int]] = [[] for _ in range(count)]
        for op, read in enumerate(self.reads):
            for i in read:
                self.users[i].append(op)
        # Of an op that gives outputs of the step beside other results, only those stay.
        made = [arrays.outputs(op) for op in range(count)]
        self.bytes = [float(arrays.size[m][arrays.output[m] == 0].sum()) for m in made]
        self.staying = [float(arrays.size[m][arrays.output[m] != 0].sum()) for m in made]
        self.once = [bool(arrays.output[m].any()) for m in made]
        self.room = float(max(1, budget_bytes - graph.resident_bytes))
        self.base_ns = max(1, int(arrays.time.sum()))
        self.builder = Builder()
        self.run = [[-1] * (t + 1) for t in range(count)]
        self.keep = [[-1] * t for t in range(count + 1)]
        self._columns()
        for t in range(count):
            self._dependencies(t)
            self._memory(t)

    def problem(self) -> Problem:
        """Rows and columns; the objective in `SCALE` times the step without recomputation."""
        return self.builder.problem(0.0)

    def computes(self, values: Floats) -> list[int]:
        """Executions of a solution, stage by stage."""
        return [i for t in range(self.count) for i in range(t + 1) if values[self.run[t][i]] > 0.5]

    def _columns(self) -> None:
        ops, builder = self.graph.ops, self.builder
        for t in range(self.count):
            for i in range(t + 1):
                column = builder.binary(ops[i].time_ns / self.base_ns * SCALE)
                if i == t:
                    builder.lower[column] = 1.0
                elif not ops[i].recompute or self.once[i]:
                    builder.upper[column] = 0.0
                self.run[t][i] = column
        for t in range(1, self.count + 1):
            for i in range(t):
                self.keep[t][i] = column = builder.binary()
                if self.once[i] and not self.bytes[i]:
                    builder.lower[column] = 1.0
                elif t == self.count:
                    builder.upper[column] = 0.0

    def _dependencies(self, t: int) -> None:
        row = self.builder.row
        for j in range(t + 1):
            for i in self.reads[j]:
                row([(self.run[t][j], -1.0), (self.run[t][i], 1.0), (self.keep[t][i], 1.0)], 0, INF)
        for i in range(t + 1):
            terms = [(self.keep[t + 1][i], -1.0), (self.run[t][i], 1.0)]
            if i < t:
                terms.append((self.keep[t][i], 1.0))
            row(terms, 0.0, INF)

    def _memory(self, t: int) -> None:
        builder, arrays = self.builder, self.graph.arrays
        held = [(self.keep[t][i], self.bytes[i] / self.room) for i in range(t) if self.bytes[i]]
        before: list[tuple[int, float]] = held
        constant = sum(self.staying[:t]) / self.room
        for k in range(t + 1):
            if k == t:
                constant += self.staying[t] / self.room
            during = builder.continuous(0.0, 1.0)
            work = float(arrays.workspace[k] if k == t else arrays.rerun_workspace[k]) / self.room
            own = [(self.run[t][k], self.bytes[k] / self.room)] if self.bytes[k] else []
            builder.row([(during, -1.0), *before, *own], -constant, -constant)
            if work:
                builder.row([(during, 1.0), (self.run[t][k], work)], -INF, 1.0)
            before, constant = [(during, 1.0), *self._freed(t, k)], 0.0

    def _freed(self, t: int, k: int) -> list[tuple[int, float]]:
        """Bytes that leave after op k, as terms of the next row."""
        builder = self.builder
        terms: list[tuple[int, float]] = []
        for i in (*self.reads[k], k):
            if not self.bytes[i]:
                continue
            free = builder.binary()
            later = [self.run[t][j] for j in self.users[i] if k < j <= t]
            # hazards = 1 - R[t, k] + S[t+1, i] + later users
            hazards = [
                (self.run[t][k], -1.0),
                (self.keep[t + 1][i], 1.0),
                *((c, 1.0) for c in later),
            ]
            builder.row([(free, 1.0), *hazards], 0.0, INF)
            kappa = 2.0 + len(later)
            builder.row([(free, kappa), *hazards], -INF, kappa - 1.0)
            terms.append((free, -self.bytes[i] / self.room))
        return terms
