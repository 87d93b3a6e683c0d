"""HiGHS through highspy, the default backend."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import highspy
import numpy as np

from .problem import INF, Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from highspy.highs import HighsCallbackEvent

    from ..array_types import Floats
    from ..control import Control
    from .problem import Builder, Effort, Peek, Problem

TOLERANCE = 1e-6  # of objectives, relative
_STDOUT = threading.Lock()


class Highs:
    """Runs HiGHS in a thread, so that Ctrl-C and the deadline reach it at once."""

    name = "highs"

    def solve(
        self,
        problem: Problem,
        effort: Effort,
        *,
        start: Floats | None = None,
        cutoff: float = INF,
        peek: Peek | None = None,
    ) -> Answer:
        """See `Backend.solve`."""
        control = effort.control
        deadline = control.elapsed + effort.time_limit

        once = partial(_solve_once, problem, cutoff=cutoff, peek=peek)
        answer = once(effort, start=start)
        if start is None or answer.outcome == Outcome.INFEASIBLE:
            return answer
        bound = answer.bound
        if answer.values is not None and _misreported(problem, answer):
            # Presolve took the start for a cheaper solution that is none: it ended the search.
            answer = once(replace(effort, time_limit=deadline - control.elapsed), start=None)
            if answer.outcome == Outcome.INFEASIBLE:
                return answer
            bound = max(bound, answer.bound)
        # In the reduced space of presolve the start may also have become a dearer solution.
        cost = _cost(problem, start)
        if answer.values is not None and answer.objective <= cost:
            return replace(answer, bound=min(bound, answer.objective))
        outcome = answer.outcome if answer.values is not None else Outcome.FEASIBLE
        return Answer(outcome, start, cost, min(bound, cost))


def _solve_once(
    problem: Problem,
    effort: Effort,
    *,
    start: Floats | None,
    cutoff: float,
    peek: Peek | None,
) -> Answer:
    """What HiGHS answers, as it is."""
    solver = quiet_solver()
    solver.setOptionValue("mip_rel_gap", effort.gap)
    solver.setOptionValue("threads", effort.threads)
    solver.setOptionValue("random_seed", effort.seed % 2**31)
    if cutoff < INF:
        solver.setOptionValue("objective_bound", cutoff)
    solver.passModel(_model(problem))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        solution.value_valid = True
        solver.setSolution(solution)
    if peek is not None:
        _let_peek(solver, peek)
    run(solver, effort.control, effort.time_limit)
    return _answer(solver)


def _cost(problem: Problem, values: Floats) -> float:
    return float(problem.cost @ values) + problem.offset


def _misreported(problem: Problem, answer: Answer) -> bool:
    """Whether the objective is less than that of the solution which comes with it."""
    assert answer.values is not None
    cost = _cost(problem, answer.values)
    return cost > answer.objective + TOLERANCE * max(1.0, abs(cost))


def quiet_solver() -> highspy.Highs:
    """A new HiGHS that writes nothing."""
    with _silent_stdout():
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    return solver


def run(solver: highspy.Highs, control: Control, time_limit: float) -> None:
    """Run `solver` in a thread of its own, and cancel it when time is up or Ctrl-C was pressed."""
    deadline = control.elapsed + time_limit
    solver.setOptionValue("time_limit", solver.getRunTime() + max(0.01, time_limit))
    solver.HandleUserInterrupt = True  # lets cancelSolve stop the search
    thread = threading.Thread(target=solver.run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        if control.over or control.elapsed > deadline:
            solver.cancelSolve()  # type: ignore[no-untyped-call]


def rows_of(
    builder: Builder, first: int
) -> tuple[int, Floats, Floats, int, npt.NDArray[np.int32], npt.NDArray[np.int32], Floats]:
    """Rows from number `first` on, as `Highs.addRows` takes them."""
    lower = np.array(builder.row_lower[first:], dtype=np.float64)
    upper = np.array(builder.row_upper[first:], dtype=np.float64)
    begin = builder.start[first]
    start = np.array(builder.start[first:-1], dtype=np.int32) - np.int32(begin)
    index = np.array(builder.index[begin:], dtype=np.int32)
    value = np.array(builder.value[begin:], dtype=np.float64)
    return len(lower), lower, upper, len(index), start, index, value


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """HiGHS writes a banner to file descriptor 1 when it is made, before any option can be set."""
    with _STDOUT:  # one thread at a time, or the null device would be put back as stdout
        sys.stdout.flush()
        saved = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 1)
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)
            os.close(null)


def _let_peek(solver: highspy.Highs, peek: Peek) -> None:
    """Copy every improving solution into `peek`."""

    def improved(event: HighsCallbackEvent) -> None:
        peek.values = np.array(event.data_out.mip_solution, dtype=np.float64)

    solver.cbMipImprovingSolution += improved


def _model(problem: Problem) -> highspy.HighsLp:
    model = highspy.HighsLp()
    model.num_col_ = problem.columns
    model.num_row_ = problem.rows
    model.col_cost_ = problem.cost
    model.col_lower_ = problem.lower
    model.col_upper_ = problem.upper
    model.row_lower_ = problem.row_lower
    model.row_upper_ = problem.row_upper
    model.offset_ = problem.offset
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.num_col_ = problem.columns
    model.a_matrix_.num_row_ = problem.rows
    model.a_matrix_.start_ = problem.start
    model.a_matrix_.index_ = problem.index
    model.a_matrix_.value_ = problem.value
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    model.integrality_ = [kinds[int(flag)] for flag in problem.integer]
    return model


def _answer(solver: highspy.Highs) -> Answer:
    status = solver.getModelStatus()
    info = solver.getInfo()
    if status in (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
        highspy.HighsModelStatus.kObjectiveBound,
    ):
        return Answer(Outcome.INFEASIBLE, None, INF, INF)
    bound = float(info.mip_dual_bound)
    if not np.isfinite(bound):
        bound = -INF
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if not feasible:
        return Answer(Outcome.UNKNOWN, None, INF, bound)
    values = np.array(solver.getSolution().col_value, dtype=np.float64)
    objective = float(info.objective_function_value)
    outcome = Outcome.OPTIMAL if status == highspy.HighsModelStatus.kOptimal else Outcome.FEASIBLE
    return Answer(outcome, values, objective, min(bound, objective))
