"""The news of a running command: a live line where a person watches, a few plain lines in a log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..solver.live import LogProgress, progress_line, write_line
from ..solver.progress import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..solver.live import LiveProgress
    from ..solver.progress import Event, Progress


@contextlib.contextmanager
def watch(label: str, *, quiet: bool) -> Iterator[Progress | None]:
    """Show progress on stderr for the length of the `with` block; None under `--quiet`."""
    if not quiet:
        write_line(f"lowtide: {label}")
    with progress_line(wanted=not quiet) as progress:
        if progress is not None:
            progress.say(label)
        yield progress


class Phases:
    """What a long command is doing: on the live line, or a plain line for each phase.

    A phase that takes long is told of again in a log, with how far it is.

    Attributes
    ----------
    text
        What goes on.
    """

    def __init__(self, line: LiveProgress | LogProgress | None) -> None:
        self._line = line
        self.text = ""

    def begin(self, text: str) -> None:
        """A new phase."""
        if isinstance(self._line, LogProgress):
            self._line.print(f"{text} ...")
        self.say(text)

    def say(self, text: str) -> None:
        """How far the phase is."""
        self.text = text
        if self._line is not None:
            self._line.say(text)

    def update(self, event: Event) -> None:
        """What a solve in the phase has found."""
        if self._line is not None:
            self._line.say(f"{self.text}: {describe(event)}")

    def measured(self, done: int, total: int, operator: str) -> None:
        """How far the profile is."""
        self.say(f"measuring operators: {done} of {total}  {operator}")


@contextlib.contextmanager
def phases(*, quiet: bool) -> Iterator[Phases]:
    """Tell on stderr what goes on during the `with` block."""
    with progress_line(wanted=not quiet) as line:
        yield Phases(line)
