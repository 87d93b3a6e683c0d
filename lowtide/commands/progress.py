"""The news of a running solve: a live line where a person watches, a few plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from ..solver.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from ..solver.progress import Event, Progress


def describe(event: Event) -> str:
    """`overhead 3.398%  bound 3.390%  gap 0.008%  note`."""
    parts: list[str] = []
    if event.base_ns <= 0 and event.incumbent_ns is None:  # before the clock starts
        return event.note
    best, bound, base = event.incumbent_ns, event.bound_ns, event.base_ns
    if best is None:
        parts.append("no plan yet")
    elif base > 0:
        parts.append(f"overhead {format_percent((best - base) / base)}")
    if bound is not None and base > 0:
        parts.append(f"bound {format_percent(max(0, bound - base) / base)}")
    if best is not None and bound is not None and best > 0:
        parts.append(f"gap {format_percent(max(0, best - bound) / best)}")
    if event.note:
        parts.append(event.note)
    return "  ".join(parts)


class LiveProgress:
    """One line that is redrawn several times a second."""

    def __init__(self) -> None:
        self._text = ""
        self._start = time.monotonic()

    def update(self, event: Event) -> None:
        """Show `event` at the next redraw."""
        self._text = describe(event)

    def __rich__(self) -> Text:
        from rich.text import Text

        elapsed = time.monotonic() - self._start
        return Text(f"{elapsed:8.1f} s  {self._text}", no_wrap=True, overflow="ellipsis")


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
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        progress = LiveProgress()
        console = Console(stderr=True, markup=False, highlight=False)
        with Live(progress, console=console, refresh_per_second=8, transient=True):
            yield progress
    else:
        yield LineProgress()


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
