"""HiGHS through highspy, the default backend."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

import highspy
import numpy as np

from .problem import INF, Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..control import Control
    from .problem import Problem


class Highs:
    """Runs HiGHS in a thread, so that Ctrl-C and the deadline reach it at once."""

    name = "highs"

    def solve(
        self,
        problem: Problem,
        *,
        control: Control,
        time_limit: float,
        gap: float,
        threads: int,
        seed: int,
        start: dict[int, float] | None = None,
    ) -> Answer:
        """See `Backend.solve`."""
        with _silent_stdout():
            solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("time_limit", max(0.01, time_limit))
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("threads", threads)
        solver.setOptionValue("random_seed", seed % 2**31)
        solver.passModel(_model(problem))
        if start:
            columns = np.fromiter(start.keys(), dtype=np.int32, count=len(start))
            values = np.fromiter(start.values(), dtype=np.float64, count=len(start))
            solver.setSolution(len(start), columns, values)
        solver.HandleUserInterrupt = True  # lets cancelSolve stop the search
        thread = threading.Thread(target=solver.run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
            if control.over:
                solver.cancelSolve()  # type: ignore[no-untyped-call]
        return _answer(solver)


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """HiGHS writes a banner to file descriptor 1 when it is made, before any option can be set."""
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
