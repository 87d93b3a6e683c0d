"""Linear programs before the integer one: cuts, a bound, and columns fixed by reduced costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import highspy
import numpy as np

from .chains import Chains
from .highs import quiet_solver, rows_of, run
from .interior import Interior
from .problem import INF, Outcome

if TYPE_CHECKING:
    from ..array_types import Floats
    from ..control import Control
    from ..options import Techniques
    from .staged import StagedProgram

ROUNDS = 40
MOST_CUTS = 500
STEADY = 5  # rounds that together must gain GAIN of what is still to gain
GAIN = 0.03


@dataclass
class Root:
    """The strengthened program.

    Attributes
    ----------
    outcome
        OPTIMAL if the last linear program was solved; INFEASIBLE if there is no solution at all.
    bound
        A lower bound, offset included; -inf if there was no time.
    values
        The fractional solution, None without one.
    interior
        The rows inside coarse stages, None if they are not used.
    fixed
        How many columns reduced costs fixed.
    """

    outcome: Outcome
    bound: float
    values: Floats | None
    interior: Interior | None
    fixed: int = 0


def strengthen(
    program: StagedProgram,
    *,
    control: Control,
    time_limit: float,
    cutoff: float,
    techniques: Techniques,
) -> Root:
    """Add violated cuts to `program` and fix columns that no solution below `cutoff` changes.

    Rows that were added but are slack in the end are taken out again. Without a solution below
    `cutoff` (offset included) the bound is `cutoff`.
    """
    interior = Interior(program) if techniques.interior_rows else None
    chains = Chains(program) if techniques.chain_cuts else None
    loop = _Loop(program)
    bounds: list[float] = []
    deadline = control.elapsed + time_limit
    while True:
        outcome = loop.solve(control, deadline - control.elapsed)
        if outcome != Outcome.OPTIMAL:
            break
        bounds.append(loop.objective)
        if bounds[-1] >= cutoff or len(bounds) == ROUNDS:
            break
        aim = cutoff if cutoff < INF else bounds[-1] + 0.01 * program.offset
        if len(bounds) > STEADY and bounds[-1] - bounds[-1 - STEADY] < GAIN * (aim - bounds[-1]):
            break
        added = 0 if interior is None else interior.separate(loop.values)
        added += 0 if program.events is None else program.events.separate(loop.values)
        added += 0 if chains is None else chains.separate(loop.values, MOST_CUTS)
        if not added:
            break
    if outcome == Outcome.INFEASIBLE:
        return Root(outcome, INF, None, interior)
    bound = max(bounds, default=-INF)
    values = loop.values if bounds else None
    fixed = 0
    if outcome == Outcome.OPTIMAL:
        if techniques.fixing and bound < cutoff < INF:
            fixed = loop.fix(cutoff)
        if chains is not None:
            loop.drop_slack(chains.rows)
    return Root(outcome, min(bound, cutoff), values, interior, fixed)


class _Loop:
    """One HiGHS model of the relaxation that grows with the program's builder."""

    def __init__(self, program: StagedProgram) -> None:
        self.program = program
        self.solver = quiet_solver()
        self.solver.setOptionValue("threads", 1)
        self.solver.setOptionValue("solver", "simplex")
        self.columns = 0
        self.rows = 0
        self.objective = -INF
        self.values: Floats = np.zeros(0)

    def solve(self, control: Control, time_limit: float) -> Outcome:
        """Pass what is new and solve; UNKNOWN if time is up."""
        builder = self.program.builder
        before = self.columns
        for c in range(before, len(builder.cost)):
            self.solver.addCol(
                builder.cost[c], builder.lower[c], builder.upper[c], 0,
                np.zeros(0, dtype=np.int32), np.zeros(0),
            )  # fmt: skip
        self.columns = len(builder.cost)
        if self.rows < len(builder.row_lower):
            self.solver.addRows(*rows_of(builder, self.rows))
            self.rows = len(builder.row_lower)
        run(self.solver, control, time_limit)
        status = self.solver.getModelStatus()
        if not self.columns:
            self.objective = self.program.offset
            lower, upper = np.array(builder.row_lower), np.array(builder.row_upper)
            broken = bool((lower > 0.0).any() or (upper < 0.0).any())
            return Outcome.INFEASIBLE if broken else Outcome.OPTIMAL
        if status == highspy.HighsModelStatus.kInfeasible:
            return Outcome.INFEASIBLE
        if status != highspy.HighsModelStatus.kOptimal:
            return Outcome.UNKNOWN
        self.objective = self.solver.getInfo().objective_function_value + self.program.offset
        self.values = np.array(self.solver.getSolution().col_value, dtype=np.float64)
        return Outcome.OPTIMAL

    def fix(self, cutoff: float) -> int:
        """Fix whole columns that cannot leave their bound below `cutoff`; how many."""
        builder = self.program.builder
        if not self.columns:
            return 0
        reduced = np.array(self.solver.getSolution().col_dual, dtype=np.float64)
        room = cutoff - self.objective + 1e-6 * self.program.offset
        integer = np.array(builder.integer)
        at_lower = integer & (reduced > room) & (self.values < 1e-6)
        at_upper = integer & (-reduced > room) & (self.values > 1.0 - 1e-6)
        for c in np.flatnonzero(at_lower).tolist():
            builder.upper[c] = 0.0
        for c in np.flatnonzero(at_upper).tolist():
            builder.lower[c] = 1.0
        return int(at_lower.sum() + at_upper.sum())

    def drop_slack(self, rows: list[int]) -> None:
        """Take those of `rows` out of the program that do not bind here."""
        dual = np.array(self.solver.getSolution().row_dual, dtype=np.float64)
        slack = np.zeros(len(self.program.builder.row_lower), dtype=np.bool_)
        slack[rows] = np.abs(dual[rows]) < 1e-9
        self.program.builder.drop_rows(slack)
