"""Rows of a study: one method at one budget of one subject, beside what was published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

import lowtide
from lowtide.solver.errors import InputError
from lowtide.solver.files import write_atomic
from lowtide.solver.version import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from lowtide.solver import comparison


class Row(msgspec.Struct, frozen=True):
    """One method at one budget.

    Attributes
    ----------
    subject, ops
        The training step.
    budget, budget_bytes
        As asked for, and in bytes, resident ones included.
    method, status, reason
        The method; `optimal`, `feasible`, or what kept it from a plan, with the reason.
    peak_bytes, overhead, bound, seconds
        Of the plan; None without one.
    time_limit
        Seconds that the method had.
    published
        What somebody printed for this method at this budget, in words; empty if nothing.
    """

    subject: str
    ops: int
    budget: str
    budget_bytes: int
    method: str
    status: str
    reason: str
    peak_bytes: int | None
    overhead: float | None
    bound: float | None
    seconds: float
    published: str = ""
    time_limit: float = 0.0

    @classmethod
    def of(
        cls, subject: str, ops: int, row: comparison.Row, published: str, time_limit: float
    ) -> Row:
        """From a row of a comparison."""
        return cls(
            subject, ops, row.budget, row.budget_bytes, row.method, row.status, row.reason,
            row.peak_bytes, row.overhead, row.bound, round(row.seconds, 2), published, time_limit,
        )  # fmt: skip


class Results(msgspec.Struct):
    """A results file: how it was made, and the rows."""

    command: str
    versions: dict[str, str]
    rows: list[Row]


@dataclass(frozen=True)
class Subject:
    """A training step and the budgets to plan it for.

    Attributes
    ----------
    name
        In tables.
    make
        Gives the graph.
    budgets
        As `compare` takes them.
    published
        (method, budget) -> figure in words.
    """

    name: str
    make: Callable[[], lowtide.Graph]
    budgets: tuple[str, ...]
    published: dict[tuple[str, str], str]


def run(
    subjects: Iterable[Subject],
    methods: Sequence[str],
    *,
    time_limit: float,
    resume: Path | None,
    tell: Callable[[str], None],
) -> Iterator[Row]:
    """Rows of all subjects, as they are done."""
    for subject in subjects:
        graph = subject.make()
        ops = len(graph.ops)
        tell(f"{subject.name}: {ops} ops")

        def heard(row: comparison.Row, count: int, name: str = subject.name) -> None:
            words = row.status if row.overhead is None else f"{row.overhead:.2%}"
            tell(f"{name}, {row.budget}, {row.method}: {words} in {row.seconds:.1f} s")

        found = lowtide.compare(
            graph, subject.budgets, methods, time_limit=time_limit, resume=resume, on_row=heard
        )
        for row in found.rows:
            figure = subject.published.get((row.method, row.budget), "")
            yield Row.of(subject.name, ops, row, figure, time_limit)
        if found.interrupted:
            raise KeyboardInterrupt


def read(path: Path) -> Results | None:
    """A results file; None if it does not exist.

    Raises
    ------
    InputError
        If it is no results file.
    """
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} holds no results ({error}): delete it") from None


def write(path: Path, command: str, rows: Sequence[Row]) -> list[Row]:
    """Write the file, whole or not at all, and give all rows of it.

    Rows of subjects and methods that were not run again stay.
    """
    known = read(path)
    before = [] if known is None else known.rows
    new = {(row.subject, row.budget_bytes, row.method): row for row in rows}
    budgets = {(row.subject, row.budget_bytes) for row in rows}
    again = {row.subject for row in rows}
    merged = [
        new.pop((row.subject, row.budget_bytes, row.method), row)
        for row in before
        if row.subject not in again or (row.subject, row.budget_bytes) in budgets
    ]
    merged += new.values()
    text = msgspec.json.format(
        msgspec.json.encode(Results(command, versions("numpy", "highspy", "ortools"), merged)),
        indent=1,
    )
    write_atomic(path, text + b"\n")
    return merged
