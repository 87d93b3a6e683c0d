"""A mixed-integer program as sparse rows, and what a backend answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from ..array_types import Bools, Floats, Ints
    from ..control import Control

INF = float("inf")


@dataclass(frozen=True, eq=False)
class Problem:
    """min cost @ x + offset, row_lower <= A x <= row_upper, lower <= x <= upper.

    A is in CSR form: row i has `index[start[i]:start[i+1]]` and the same slice of `value`.
    """

    cost: Floats
    offset: float
    lower: Floats
    upper: Floats
    integer: Bools
    start: Ints
    index: Ints
    value: Floats
    row_lower: Floats
    row_upper: Floats

    @property
    def columns(self) -> int:
        """Number of variables."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """Number of constraints."""
        return len(self.row_lower)


@dataclass
class Builder:
    """Collects columns and rows."""

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)

    def binary(self, cost: float = 0.0) -> int:
        """Add a 0-1 variable and return its column."""
        return self._column(cost, 0.0, 1.0, True)

    def continuous(self, lower: float, upper: float) -> int:
        """Add a continuous variable and return its column."""
        return self._column(0.0, lower, upper, False)

    def implied(self) -> int:
        """Add a variable in [0, 1] that is whole where the decisions are; solvers gain by that."""
        return self._column(0.0, 0.0, 1.0, True)

    def row(self, terms: list[tuple[int, float]], lower: float, upper: float) -> None:
        """Add lower <= sum(coefficient * column) <= upper; each column at most once."""
        for column, coefficient in terms:
            self.index.append(column)
            self.value.append(coefficient)
        self.start.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def drop_rows(self, gone: Bools) -> None:
        """Take the marked rows out."""
        stay = np.flatnonzero(~gone).tolist()
        parts = [slice(self.start[i], self.start[i + 1]) for i in stay]
        self.index = [c for part in parts for c in self.index[part]]
        self.value = [v for part in parts for v in self.value[part]]
        self.row_lower = [self.row_lower[i] for i in stay]
        self.row_upper = [self.row_upper[i] for i in stay]
        lengths = [part.stop - part.start for part in parts]
        self.start = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]

    def problem(self, offset: float) -> Problem:
        """The finished program."""
        return Problem(
            cost=np.array(self.cost, dtype=np.float64),
            offset=offset,
            lower=np.array(self.lower, dtype=np.float64),
            upper=np.array(self.upper, dtype=np.float64),
            integer=np.array(self.integer, dtype=np.bool_),
            start=np.array(self.start, dtype=np.int64),
            index=np.array(self.index, dtype=np.int64),
            value=np.array(self.value, dtype=np.float64),
            row_lower=np.array(self.row_lower, dtype=np.float64),
            row_upper=np.array(self.row_upper, dtype=np.float64),
        )

    def _column(self, cost: float, lower: float, upper: float, integer: bool) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1


class Outcome(StrEnum):
    """What a backend says of a problem."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """A backend's answer.

    Attributes
    ----------
    outcome
        OPTIMAL means within the asked gap.
    values
        The best solution found, or None.
    objective, bound
        Its cost, and a lower bound on every solution's (-inf if none), offset included.
    """

    outcome: Outcome
    values: Floats | None
    objective: float
    bound: float


@dataclass
class Peek:
    """The best solution so far of a solver that is still at work; None if it does not say."""

    values: Floats | None = None


@dataclass(frozen=True)
class Effort:
    """How long and how closely a solver looks.

    Attributes
    ----------
    control
        Ends the solve when it is over.
    time_limit
        Seconds.
    gap
        Relative gap at which a solution is good enough.
    threads, seed
        Of the solver.
    """

    control: Control
    time_limit: float
    gap: float
    threads: int
    seed: int


class Backend(Protocol):
    """One solver."""

    name: str

    def solve(
        self,
        problem: Problem,
        effort: Effort,
        *,
        start: Floats | None = None,
        cutoff: float = INF,
        peek: Peek | None = None,
    ) -> Answer:
        """Solve with this effort.

        `start` is a solution; HiGHS answers with nothing dearer. Solutions that cost `cutoff` or
        more (offset included) need not be found: INFEASIBLE then means that there is none below,
        and no bound above `cutoff` counts.
        Solvers that can fill `peek` while they work.
        """
