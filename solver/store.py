"""Finished rows of comparisons and sweeps in a folder, so that interrupted ones go on.

One file a row, written whole or not at all. Its name has a hash of everything that the row depends
on: the graph with its times and sizes, method, budget, limits, versions. A file that cannot be
read, or whose plan is not that of its row, is as good as none.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .check import check
from .comparison import INFEASIBLE, NO_PLAN, NOT_APPLICABLE, Row
from .errors import CheckError, InputError
from .files import write_atomic
from .plan import Stop
from .version import versions

if TYPE_CHECKING:
    import os

    from .graph import Graph


class Store:
    """Rows of one graph under one set of limits.

    Parameters
    ----------
    folder
        Made if it does not exist.
    graph
        The graph that the rows are of.
    settings
        What else their results depend on: time limit, gap, seed, ...

    Raises
    ------
    InputError
        If the folder cannot be made, or not written to.
    """

    def __init__(self, folder: str | os.PathLike[str], graph: Graph, **settings: object) -> None:
        self.folder = Path(folder)
        self.graph = graph
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()  # told now, not after the first row
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
        digest = hashlib.sha256(msgspec.json.encode(graph))
        digest.update(repr(sorted(settings.items())).encode())
        digest.update(repr(sorted(versions("highspy", "ortools").items())).encode())
        self._key = digest.hexdigest()

    def get(self, method: str, budget: str, budget_bytes: int) -> Row | None:
        """The finished row, under the given name of its budget; None if there is none."""
        try:
            row = msgspec.json.decode(self._path(method, budget_bytes).read_bytes(), type=Row)
            if row.plan is not None:
                check(self.graph, row.plan)
        except (OSError, msgspec.DecodeError, CheckError, ValueError):
            return None
        if (row.method, row.budget_bytes) != (method, budget_bytes) or not _agrees(row):
            return None
        return replace(row, budget=budget)

    def put(self, row: Row) -> None:
        """Keep a row, unless Ctrl-C ended it."""
        if row.plan is None or row.plan.stopped_by is not Stop.INTERRUPTED:
            write_atomic(self._path(row.method, row.budget_bytes), msgspec.json.encode(row))

    def _path(self, method: str, budget_bytes: int) -> Path:
        return self.folder / f"{method}-{budget_bytes}-{self._key[:16]}.row.json"


def _agrees(row: Row) -> bool:
    """Whether a row says the same as its plan; one that was edited by hand may not."""
    plan = row.plan
    if plan is None:
        return row.status in (INFEASIBLE, NO_PLAN, NOT_APPLICABLE)
    return (plan.budget_bytes, plan.status.value) == (row.budget_bytes, row.status)
