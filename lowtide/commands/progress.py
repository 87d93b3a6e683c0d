"""The news of a running solve: a live line where a person watches, a few plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from ..solver.live import live_line
from ..solver.progress import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..solver.progress import Event, Progress


class LineProgress:
    """A line when something changed, ever more rarely as time goes by."""

    def __init__(self) -> None:
        self._next = 0.0
        self._shown = ""

    def update(self, event: Event) -> None:
        """Print `event` unless it is old news or comes too soon."""
        text = describe(event)
        if text == self._shown or event.seconds < self._next:
            return
        self._shown = text
        self._next = event.seconds + max(1.0, 0.1 * event.seconds)
        print(f"lowtide: {event.seconds:8.1f} s  {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def watch(label: str, *, quiet: bool) -> Iterator[Progress | None]:
    """Show progress on stderr for the length of the `with` block; None under `--quiet`."""
    if quiet:
        yield None
        return
    print(f"lowtide: {label}", file=sys.stderr, flush=True)
    with live_line() as live:
        yield LineProgress() if live is None else live


@contextlib.contextmanager
def spinner(label: str, *, quiet: bool) -> Iterator[None]:
    """Say what is being done, where it cannot be measured how much is left."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True, markup=False, highlight=False).status(f"{label} ..."):
            yield
    else:
        print(f"lowtide: {label} ...", file=sys.stderr, flush=True)
        yield
