"""The news of a running solve: a live line where a person watches, a few plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from ..solver.live import live_line
from ..solver.progress import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..solver.live import LiveProgress
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


class Phases:
    """What a long command is doing: on the live line, or a plain line for each phase."""

    def __init__(self, live: LiveProgress | None, *, quiet: bool) -> None:
        self._live, self._quiet = live, quiet

    def begin(self, text: str) -> None:
        """A new phase."""
        if self._live is not None:
            self._live.say(text)
        elif not self._quiet:
            print(f"lowtide: {text} ...", file=sys.stderr, flush=True)

    def measured(self, done: int, total: int, operator: str) -> None:
        """How far the profile is; only the line on a terminal counts along."""
        if self._live is not None:
            self._live.say(f"measuring operators: {done} of {total}  {operator}")


@contextlib.contextmanager
def phases(*, quiet: bool) -> Iterator[Phases]:
    """Tell on stderr what goes on during the `with` block."""
    with live_line(wanted=not quiet) as live:
        yield Phases(live, quiet=quiet)


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
