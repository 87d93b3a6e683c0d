"""The file of results: written whole or not at all, and read to go on where a run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.solver.errors import InputError
from lowtide.solver.files import write_atomic
from lowtide.solver.version import versions

from .measure import Row, Settings  # noqa: TC001  (msgspec reads the types at run time)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .cases import Case


class Results(msgspec.Struct):
    """Rows by case, and what they were made with."""

    rows: list[Row] = msgspec.field(default_factory=list)
    skipped: list[tuple[str, str]] = msgspec.field(default_factory=list)
    versions: dict[str, str] = msgspec.field(default_factory=dict)

    def known(self, case: Case, settings: Settings, graph_hash: str) -> Row | None:
        """The row of exactly this case, settings and graph; None if it was not measured."""
        for row in self.rows:
            if (row.case, row.settings, row.graph_hash) == (case, settings, graph_hash):
                return row
        return None

    def put(self, row: Row, order: Iterable[Case]) -> None:
        """Take `row` in place of an older one of the same name; rows stand in the order given."""
        place = {case.name: number for number, case in enumerate(order)}
        rows = [old for old in self.rows if old.case.name != row.case.name]
        rows.append(row)
        self.rows = sorted(rows, key=lambda it: place.get(it.case.name, len(place)))


def read_results(path: Path) -> Results:
    """What the file holds; nothing if it does not exist.

    Raises
    ------
    InputError
        If it is no file of results.
    """
    if not path.exists():
        return Results()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path} holds no results ({error}): delete it or use --fresh") from None


def document(results: Results) -> str:
    """The results as JSON, verdicts included."""
    data = msgspec.to_builtins(results)
    for entry, row in zip(data["rows"], results.rows, strict=True):
        entry["verdict"] = row.verdict
    return msgspec.json.format(msgspec.json.encode(data), indent=1).decode()


def write_results(results: Results, path: Path) -> None:
    """Write the file atomically."""
    results.versions = versions("numpy", "numba", "highspy", "ortools")
    write_atomic(path, (document(results) + "\n").encode())
