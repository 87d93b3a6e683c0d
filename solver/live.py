"""One line on a terminal that says what is going on, and is gone at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from .progress import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from .progress import Event


class LiveProgress:
    """A line that is redrawn several times a second: the seconds since it began, and a text."""

    def __init__(self) -> None:
        self._text = ""
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Show `text` at the next redraw."""
        self._text = text

    def update(self, event: Event) -> None:
        """Show what a solve has found."""
        self.say(describe(event))

    def __rich__(self) -> Text:
        from rich.text import Text

        elapsed = time.monotonic() - self._start
        return Text(f"{elapsed:8.1f} s  {self._text}", no_wrap=True, overflow="ellipsis")


@contextlib.contextmanager
def live_line(*, wanted: bool = True) -> Iterator[LiveProgress | None]:
    """Show a line on stderr for the length of the `with` block; None where nobody watches."""
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    progress = LiveProgress()
    console = Console(stderr=True, markup=False, highlight=False)
    with Live(
        progress, console=console, refresh_per_second=8, transient=True, redirect_stdout=False
    ):
        yield progress
