"""OR-tools' CP-SAT on the integer form.

Coefficients are scaled to integers and rounded towards zero, with the budget rounded up by more
than the rounding can add up to: a relaxation by about 2e-5 of the budget, so bounds stay valid.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from ..clauses import solve_until
from .problem import INF, Answer, Outcome

if TYPE_CHECKING:
    from ..array_types import Floats
    from .problem import Effort, Peek, Problem

FACTOR = 1e6
SLACK = 20_000


class CpSat:
    """Boolean programs by clause learning; strong on small graphs with tight budgets."""

    name = "cpsat"

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
        model = cp_model.CpModel()
        # Continuous columns in [0, 1] are integral wherever the integer ones are; larger ones are
        # running sums of bytes and live on the scaled grid.
        large = problem.upper > 1.5
        columns = [
            model.new_int_var(0, math.ceil(upper * FACTOR) + SLACK, "")
            if wide
            else model.new_int_var(int(lower), int(upper), "")
            for lower, upper, wide in zip(problem.lower, problem.upper, large, strict=True)
        ]
        for i in range(problem.rows):
            part = slice(problem.start[i], problem.start[i + 1])
            self._row(
                model, columns, large, problem.index[part], problem.value[part],
                float(problem.row_lower[i]), float(problem.row_upper[i]),
            )  # fmt: skip
        priced = np.flatnonzero(problem.cost)
        model.minimize(sum(int(problem.cost[c] * FACTOR) * columns[c] for c in priced))
        if start is not None:
            for column, value in zip(columns, start.tolist(), strict=True):
                model.add_hint(column, round(value))
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.01, effort.time_limit)
        solver.parameters.relative_gap_limit = 0.0
        cost_scale = max(1.0, problem.offset)
        solver.parameters.absolute_gap_limit = effort.gap * cost_scale * FACTOR
        solver.parameters.num_workers = effort.threads
        solver.parameters.random_seed = effort.seed % 2**31
        status = solve_until(solver, model, effort.control)
        return self._answer(problem, solver, columns, status, large)

    @staticmethod
    def _row(
        model: cp_model.CpModel,
        columns: list[cp_model.IntVar],
        large: np.ndarray[tuple[int], np.dtype[np.bool_]],
        index: np.ndarray[tuple[int], np.dtype[np.int64]],
        value: np.ndarray[tuple[int], np.dtype[np.float64]],
        lower: float,
        upper: float,
    ) -> None:
        whole = np.all(value == np.round(value)) and not bool(large[index].any())
        whole = whole and all(x in (INF, -INF) or x == round(x) for x in (lower, upper))
        factor = 1.0 if whole else FACTOR
        terms = []
        for c, v in zip(index.tolist(), value.tolist(), strict=True):
            # A running sum is on the grid already: its coefficient stays 1.
            weight = round(v) if large[c] else math.trunc(v * factor)
            terms.append(weight * columns[c])
        expression = sum(terms)
        slack = 0 if whole or lower == upper else SLACK
        low = cp_model.INT_MIN if lower == -INF else math.floor(lower * factor) - slack
        high = cp_model.INT_MAX if upper == INF else math.ceil(upper * factor) + slack
        if lower == upper and not whole:
            low = high = round(lower * factor)
        model.add_linear_constraint(expression, low, high)

    @staticmethod
    def _answer(
        problem: Problem,
        solver: cp_model.CpSolver,
        columns: list[cp_model.IntVar],
        status: int,
        large: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> Answer:
        if status == int(cp_model.INFEASIBLE):
            return Answer(Outcome.INFEASIBLE, None, INF, INF)
        bound = solver.best_objective_bound / FACTOR + problem.offset
        if status not in (int(cp_model.OPTIMAL), int(cp_model.FEASIBLE)):
            return Answer(Outcome.UNKNOWN, None, INF, bound)
        values = np.array([solver.value(c) for c in columns], dtype=np.float64)
        values[large] /= FACTOR
        objective = float(problem.cost @ values) + problem.offset
        optimal = status == int(cp_model.OPTIMAL)
        outcome = Outcome.OPTIMAL if optimal else Outcome.FEASIBLE
        return Answer(outcome, values, objective, min(bound, objective))
