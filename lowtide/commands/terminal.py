"""What a command says: the product on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..solver.errors import LowtideError
from ..solver.live import write_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Terminal:
    """Where a command writes.

    Attributes
    ----------
    json
        The product is one JSON document instead of a table.
    quiet
        Nothing but errors goes to stderr.
    """

    json: bool = False
    quiet: bool = False

    def log(self, message: str) -> None:
        """One line of news on stderr."""
        if not self.quiet:
            write_line(f"lowtide: {message}")

    def product(self, table: str, document: dict[str, Any]) -> None:
        """Print the product: the table, or the document under `--json`."""
        try:
            print(json.dumps(document, indent=1, allow_nan=False) if self.json else table)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_stdout()  # the reader has seen enough; the work is done all the same
        except OSError as error:
            discard_stdout()
            raise LowtideError(f"cannot write to stdout: {error.strerror or error}") from None


def complain(message: str) -> None:
    """Print an error as one line on stderr."""
    write_line(f"lowtide: error: {' '.join(message.split())}")


def discard_stdout() -> None:
    """Send the rest of stdout nowhere, so that the interpreter's last flush is silent too."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Keep stdout free for the product while code of others runs, C libraries included."""
    saved = -1
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        if sys.stdout.fileno() == 1:
            saved = os.dup(1)
            os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one pair a line, values below each other."""
    return aligned([list(row) for row in rows])


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows of cells as lines with aligned columns; those in `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
