"""Time limit and Ctrl-C of a solve: one object that every loop asks whether to go on."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Control:
    """A deadline and a flag that Ctrl-C sets.

    Parameters
    ----------
    time_limit
        Seconds from now; infinity for none.
    """

    def __init__(self, time_limit: float = float("inf")) -> None:
        self._start = time.monotonic()
        self._deadline = self._start + time_limit
        self.interrupt = threading.Event()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, at least 0; 0 once interrupted."""
        if self.interrupt.is_set():
            return 0.0
        return max(0.0, self._deadline - time.monotonic())

    @property
    def over(self) -> bool:
        """True once the time has passed or Ctrl-C was pressed."""
        return self.remaining <= 0.0

    def part(self, share: float = 1.0, *, most: float = float("inf")) -> Control:
        """A control of its own for a `share` of what is left, at `most` so many seconds.

        Ctrl-C reaches it through this one.
        """
        part = Control(min(most, share * self.remaining))
        part.interrupt = self.interrupt
        return part

    @contextlib.contextmanager
    def catching_interrupts(self) -> Iterator[None]:
        """Turn the first Ctrl-C into `interrupt`; a second one raises `KeyboardInterrupt`.

        Signals reach the main thread only; elsewhere this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self.interrupt.is_set():
                raise KeyboardInterrupt
            self.interrupt.set()

        previous = signal.signal(signal.SIGINT, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)
