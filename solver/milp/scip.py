"""OR-tools' linear wrapper with a MIP solver that it bundles (SCIP by default)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
from ortools.linear_solver import pywraplp

from ..errors import InputError
from .problem import INF, Answer, Outcome

if TYPE_CHECKING:
    from ..array_types import Floats
    from .problem import Effort, Peek, Problem


class OrTools:
    """A MIP solver behind `pywraplp`.

    Parameters
    ----------
    solver
        `SCIP`, `CBC` or another name that this build of OR-tools knows.
    """

    def __init__(self, solver: str = "SCIP") -> None:
        self._solver = solver
        self.name = f"ortools:{solver}"

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
        solver = pywraplp.Solver.CreateSolver(self._solver)
        if solver is None:
            raise InputError(f"this build of OR-tools has no solver {self._solver!r}: try SCIP")
        columns = [
            solver.Var(float(lower), float(upper), bool(whole), "")
            for lower, upper, whole in zip(
                problem.lower, problem.upper, problem.integer, strict=True
            )
        ]
        objective = solver.Objective()
        objective.SetMinimization()
        objective.SetOffset(problem.offset)
        for c in np.flatnonzero(problem.cost).tolist():
            objective.SetCoefficient(columns[c], float(problem.cost[c]))
        for i in range(problem.rows):
            row = solver.Constraint(float(problem.row_lower[i]), float(problem.row_upper[i]))
            for k in range(problem.start[i], problem.start[i + 1]):
                row.SetCoefficient(columns[problem.index[k]], float(problem.value[k]))
        if start is not None:
            solver.SetHint(columns, start.tolist())
        solver.SetTimeLimit(int(max(0.01, effort.time_limit) * 1000))
        if self._solver == "SCIP":
            solver.SetSolverSpecificParametersAsString(
                f"randomization/randomseedshift={effort.seed}"
            )
        parameters = pywraplp.MPSolverParameters()
        parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, effort.gap)
        status: list[int] = []
        thread = threading.Thread(target=lambda: status.append(solver.Solve(parameters)))
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
            if effort.control.over:
                solver.InterruptSolve()
        if status[0] == pywraplp.Solver.INFEASIBLE:
            return Answer(Outcome.INFEASIBLE, None, INF, INF)
        bound = float(objective.BestBound())
        if status[0] not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            return Answer(Outcome.UNKNOWN, None, INF, -INF)
        values = np.array([c.solution_value() for c in columns], dtype=np.float64)
        value = float(objective.Value())
        optimal = status[0] == pywraplp.Solver.OPTIMAL
        outcome = Outcome.OPTIMAL if optimal else Outcome.FEASIBLE
        return Answer(outcome, values, value, min(bound, value))
