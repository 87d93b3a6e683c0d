"""What a command says: the product on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table


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
            print(f"lowtide: {message}", file=sys.stderr)

    def product(self, table: Table, document: dict[str, Any]) -> None:
        """Print the product: the table, or the document under `--json`."""
        try:
            if self.json:
                print(json.dumps(document, indent=1, allow_nan=False))
            else:
                print_table(table)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_stdout()  # the reader has seen enough; the work is done all the same


def complain(message: str) -> None:
    """Print an error as one line on stderr."""
    print(f"lowtide: error: {' '.join(message.split())}", file=sys.stderr)


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


def facts_table(rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def print_table(table: Table) -> None:
    """Print to stdout; as wide as it needs to be when nobody watches."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)
    if width is not None:
        console.width = max(1, console.measure(table).maximum)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    print("\n".join(lines))
