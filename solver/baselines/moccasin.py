"""Retention intervals by constraint programming: Moccasin, Bartan et al. 2023 (arXiv 2304.14463).

Node v has up to C retention intervals [s, e]: it runs at s and its results stay until e. Time is
Checkmate's grid of events, stage t and op k <= t at t (t + 1) / 2 + k; the first interval starts on
the diagonal, so the order is the base order. With presence a:

    min  sum of w_v a[v, i]
    e[v, i] < s[v, i + 1],   a[v, 1] = 1
    sum of m_v a[v, i] over intervals that hold t is at most M, for all t         (cumulative)
    for each edge (u, v), each present (v, j): some present (u, i) with s[u, i] < s[v, j] <= e[u, i]

CP-SAT solves it with C = 2. Deviations: edges are Boolean choices instead of reservoirs, ends are
not thinned out, the phase that only looks for memory is left out; the base order is the hint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from ..clauses import solve_until
from ..control import Control
from ..realise import Tables
from ..schedule import Schedule
from .base import evaluate, everything_fits
from .chain import pruned

if TYPE_CHECKING:
    from ..graph import Graph

COPIES = 2
MOST_OPS = 700
UNITS = 2**40  # bytes are scaled down above this, budgets then rounded down


def moccasin(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """The best schedule that CP-SAT finds in the time there is.

    Raises
    ------
    NotApplicableError
        Without a budget, or on more than `MOST_OPS` ops.
    """
    everything = everything_fits(graph, budget_bytes, "moccasin", MOST_OPS)
    if everything is not None or budget_bytes is None:
        return everything
    control = control or Control()
    computes = Retention(graph, budget_bytes).solve(control)
    if computes is None:
        return Schedule.keep_everything(graph)
    tables = Tables.of(graph)
    array = pruned(tables.arrays, np.array(computes, dtype=np.int64))
    return evaluate(graph, tables, array).schedule


class Retention:
    """The model of `graph` for a budget."""

    def __init__(self, graph: Graph, budget_bytes: int) -> None:
        self.graph = graph
        self.model = cp_model.CpModel()
        count = len(graph.ops)
        self.horizon = count * (count + 1) // 2
        self.starts: list[list[cp_model.IntVar]] = []
        self.ends: list[list[cp_model.IntVar]] = []
        self.present: list[list[cp_model.IntVar | int]] = []
        self.intervals: list[cp_model.IntervalVar] = []
        self.demands: list[int] = []
        room = budget_bytes - graph.resident_bytes
        self.unit = max(1, -(-room // UNITS))
        for op in range(count):
            self._node(op)
        self.model.add_cumulative(self.intervals, self.demands, max(0, room // self.unit))
        for op in range(count):
            self._reads(op)
        time = graph.arrays.time
        self.model.minimize(
            sum(int(time[op]) * self.present[op][1] for op in range(count) if self._copies(op) > 1)
        )

    def solve(self, control: Control) -> list[int] | None:
        """Executions of the best solution, None if none was found."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        if control.remaining < float("inf"):
            solver.parameters.max_time_in_seconds = max(0.01, control.remaining)
        status = solve_until(solver, self.model, control)
        if status not in (int(cp_model.OPTIMAL), int(cp_model.FEASIBLE)):
            return None
        runs = [
            (solver.value(start), op)
            for op in range(len(self.graph.ops))
            for start, present in zip(self.starts[op], self.present[op], strict=True)
            if solver.value(present)
        ]
        return [op for _, op in sorted(runs)]

    def _copies(self, op: int) -> int:
        last = len(self.graph.ops) - 1
        return COPIES if self.graph.ops[op].recompute and op < last else 1

    def _node(self, op: int) -> None:
        model, arrays, count = self.model, self.graph.arrays, len(self.graph.ops)
        made = arrays.outputs(op)
        outputs = arrays.output[made] != 0
        # Of an op that gives outputs of the step beside other results, only those stay.
        stays = bool(outputs.all()) and len(made) > 0
        other, staying = (
            int(arrays.size[made][~outputs].sum()),
            int(arrays.size[made][outputs].sum()),
        )
        diagonal = _event(op, op)
        starts: list[cp_model.IntVar] = []
        ends: list[cp_model.IntVar] = []
        present: list[cp_model.IntVar | int] = []
        for copy in range(self._copies(op)):
            here: cp_model.IntVar | int = 1
            if copy == 0:
                start = model.new_constant(diagonal)
            else:
                domain = cp_model.Domain.from_values([_event(t, op) for t in range(op + 1, count)])
                start = model.new_int_var_from_domain(domain, "")
                here = model.new_bool_var("")
                model.add_hint(here, False)
            end = (
                model.new_constant(self.horizon)
                if stays
                else model.new_int_var(diagonal, self.horizon, "")
            )
            size = model.new_int_var(1, self.horizon + 1, "")
            self._demand(start, size, end, here, -(-(staying if stays else other) // self.unit))
            work = int(arrays.workspace[op] if copy == 0 else arrays.rerun_workspace[op])
            self._demand(start, 1, None, here, -(-max(0, work) // self.unit))
            starts.append(start)
            ends.append(end)
            present.append(here)
        if outputs.any() and not stays:
            self._demand(
                starts[0], self.horizon + 1 - diagonal, model.new_constant(self.horizon), 1,
                -(-staying // self.unit),
            )  # fmt: skip
        if len(starts) > 1 and not outputs.any():
            model.add(ends[0] < starts[1]).only_enforce_if(present[1])
        elif len(starts) > 1:
            model.add(present[1] == 0)
        self.starts.append(starts)
        self.ends.append(ends)
        self.present.append(present)

    def _demand(
        self,
        start: cp_model.IntVar,
        size: cp_model.IntVar | int,
        end: cp_model.IntVar | None,
        present: cp_model.IntVar | int,
        units: int,
    ) -> None:
        after = start + 1 if end is None else end + 1
        interval = self.model.new_optional_interval_var(start, size, after, present, "")
        if units:
            self.intervals.append(interval)
            self.demands.append(units)

    def _reads(self, op: int) -> None:
        model, arrays = self.model, self.graph.arrays
        for u in sorted({int(arrays.producer[t]) for t in arrays.inputs(op)}):
            for start, present in zip(self.starts[op], self.present[op], strict=True):
                choices = []
                for begin, end, there in zip(
                    self.starts[u], self.ends[u], self.present[u], strict=True
                ):
                    chosen = model.new_bool_var("")
                    model.add(begin < start).only_enforce_if(chosen)
                    model.add(start <= end).only_enforce_if(chosen)
                    if not isinstance(there, int):
                        model.add_implication(chosen, there)
                    choices.append(chosen)
                model.add_bool_or(choices).only_enforce_if(present)


def _event(stage: int, op: int) -> int:
    return stage * (stage + 1) // 2 + op
