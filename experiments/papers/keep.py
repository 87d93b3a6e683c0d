"""Results files of plain lists of rows: rows of subjects that were not run again stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from lowtide.solver.errors import InputError
from lowtide.solver.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Row = TypeVar("Row")


def read_list(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a file; none if it does not exist.

    Raises
    ------
    InputError
        If it holds something else.
    """
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[kind])  # type: ignore[valid-type]
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} holds no results ({error}): delete it") from None


def keep_list(path: Path, rows: Sequence[Row], subject: Callable[[Row], object]) -> None:
    """Write rows in place of those of the same subjects, whole or not at all."""
    if not rows:
        return
    new = {subject(row) for row in rows}
    old = [row for row in read_list(path, type(rows[0])) if subject(row) not in new]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode([*old, *rows]), indent=1)
    write_atomic(path, text + b"\n")
