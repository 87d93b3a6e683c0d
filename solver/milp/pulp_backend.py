"""Any solver that PuLP knows: CBC, which it ships, or an installed Gurobi, CPLEX, COPT, ..."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pulp

from ..errors import InputError
from .problem import INF, Answer, Outcome

if TYPE_CHECKING:
    from ..array_types import Floats
    from .problem import Effort, Peek, Problem


class Pulp:
    """A solver by PuLP's name.

    PuLP hands back no lower bound, so `bound` is known only for solutions that the solver calls
    optimal: its objective less the gap asked for. Ctrl-C ends the round, not the running solver.

    Parameters
    ----------
    solver
        One of `pulp.listSolvers()`.
    """

    def __init__(self, solver: str = "PULP_CBC_CMD") -> None:
        self._solver = solver
        self.name = f"pulp:{solver}"
        available = pulp.listSolvers(onlyAvailable=True)
        if solver not in available:
            raise InputError(
                f"PuLP finds no solver {solver!r} here: choose among {', '.join(available)}"
            )

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
        with warnings.catch_warnings():
            # PuLP 3 warns of names that only PuLP 4 has; both are supported here.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self._solve(problem, effort, start)

    def _solve(self, problem: Problem, effort: Effort, start: Floats | None) -> Answer:
        program, columns = _program(problem)
        options: dict[str, Any] = {
            "msg": False,
            "timeLimit": max(0.1, min(effort.time_limit, effort.control.remaining)),
            "gapRel": effort.gap,
        }
        if self._solver == "PULP_CBC_CMD":
            options["threads"] = effort.threads
            options["options"] = [f"randomSeed {effort.seed % 2**31}"]
        if start is not None:
            for column, value in zip(columns, start.tolist(), strict=True):
                column.setInitialValue(value)
        status = program.solve(pulp.getSolver(self._solver, **options))
        if status == pulp.LpStatusInfeasible:
            return Answer(Outcome.INFEASIBLE, None, INF, INF)
        if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return Answer(Outcome.UNKNOWN, None, INF, -INF)
        values = np.array([c.varValue or 0.0 for c in columns], dtype=np.float64)
        objective = float(problem.cost @ values) + problem.offset
        if program.sol_status == pulp.LpSolutionOptimal:
            return Answer(Outcome.OPTIMAL, values, objective, objective * (1.0 - effort.gap))
        return Answer(Outcome.FEASIBLE, values, objective, -INF)


def _program(problem: Problem) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    program = pulp.LpProblem("lowtide", pulp.LpMinimize)
    columns = [
        pulp.LpVariable(
            f"x{i}", float(problem.lower[i]), float(problem.upper[i]),
            pulp.LpInteger if problem.integer[i] else pulp.LpContinuous,
        )
        for i in range(problem.columns)
    ]  # fmt: skip
    priced = np.flatnonzero(problem.cost).tolist()
    program += pulp.LpAffineExpression([(columns[c], float(problem.cost[c])) for c in priced])
    for i in range(problem.rows):
        part = range(problem.start[i], problem.start[i + 1])
        terms = [(columns[problem.index[k]], float(problem.value[k])) for k in part]
        lower, upper = float(problem.row_lower[i]), float(problem.row_upper[i])
        if not terms:
            continue
        if lower == upper:
            program += pulp.LpAffineExpression(terms) == lower
            continue
        if lower != -INF:
            program += pulp.LpAffineExpression(terms) >= lower
        if upper != INF:
            program += pulp.LpAffineExpression(terms) <= upper
    return program, columns
