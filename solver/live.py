"""What is going on: a line that is redrawn on a terminal, or plain lines now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

from .progress import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.text import Text

    from .progress import Event

# Seconds: until a log hears for the first time that something takes long, and from then on.
FIRST, PACE = 2.0, 10.0
TICK = 0.25  # seconds between looks at the clock


class LiveProgress:
    """A line that is redrawn several times a second: the seconds since it began, and a text.

    Parameters
    ----------
    console
        Where the line is; None: nowhere.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._text = ""
        self._start = time.monotonic()
        self._console = console

    def say(self, text: str) -> None:
        """Show `text` at the next redraw."""
        self._text = text

    def update(self, event: Event) -> None:
        """Show what a solve has found."""
        self.say(describe(event))

    def print(self, text: str) -> None:
        """A line of its own, which stays, above the one that is redrawn."""
        if self._console is not None:
            self._console.print(text, soft_wrap=True)

    def __rich__(self) -> Text:
        from rich.text import Text

        elapsed = time.monotonic() - self._start
        return Text(f"{elapsed:8.1f} s  {self._text}", no_wrap=True, overflow="ellipsis")


class LogProgress:
    """The same for a log: no silence for longer than `PACE` seconds, and news ever more rarely.

    Parameters
    ----------
    clock
        Seconds; of any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._text = self._shown = ""
        self._news, self._beat = 0.0, FIRST  # seconds from which a line may, and has to, come
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """What goes on from now; told by the next line."""
        self._text = text

    def print(self, text: str) -> None:
        """A line of its own, at once; it is what goes on until something else is said."""
        with self._lock:
            self._text = self._shown = text
            self._beat = max(self._beat, self._seconds + FIRST)
            write_line(f"lowtide: {text}")

    def update(self, event: Event) -> None:
        """Print what a solve has found, unless it is old news or comes too soon."""
        self.say(describe(event))
        with self._lock:
            if self._text != self._shown and self._seconds >= self._news:
                self._line()

    def tick(self) -> None:
        """Print what goes on if nothing was printed for long; called again and again."""
        with self._lock:
            if self._text and self._seconds >= self._beat:
                self._line()

    @property
    def _seconds(self) -> float:
        return self._clock() - self._start

    def _line(self) -> None:
        seconds = self._seconds
        self._shown = self._text
        self._news = seconds + max(1.0, 0.1 * seconds)
        self._beat = seconds + PACE
        write_line(f"lowtide: {seconds:8.1f} s  {self._text}")


def write_line(line: str) -> None:
    """One line on stderr, in one piece: threads write there, too.

    Work goes on where nobody can be told: a stderr that is full or closed, or none at all.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def live_line(*, wanted: bool = True) -> Iterator[LiveProgress | None]:
    """Show a line on stderr for the length of the `with` block; None where nobody watches."""
    if not wanted or sys.stderr is None or sys.stderr.closed or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, markup=False, highlight=False)
    progress = LiveProgress(console)
    with Live(
        progress, console=console, refresh_per_second=8, transient=True, redirect_stdout=False
    ):
        yield progress


@contextlib.contextmanager
def log_lines() -> Iterator[LogProgress]:
    """Plain lines on stderr for the length of the `with` block: it is told what takes long."""
    progress = LogProgress()
    over = threading.Event()

    def run() -> None:
        while not over.wait(TICK):
            progress.tick()

    thread = threading.Thread(target=run, name="lowtide-progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        thread.join(timeout=1.0)


@contextlib.contextmanager
def progress_line(*, wanted: bool = True) -> Iterator[LiveProgress | LogProgress | None]:
    """The line on a terminal, else lines in the log; None if neither is `wanted`."""
    with live_line(wanted=wanted) as live:
        if live is not None or not wanted:
            yield live
            return
        with log_lines() as lines:
            yield lines
