"""Time limit and Ctrl-C of a solve: one object that every loop asks whether to go on."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


class Control:
    """A deadline and a flag that Ctrl-C sets.

    Parameters
    ----------
    time_limit
        Seconds from now; infinity for none.
    interrupt
        The flag, if it is shared; setting it ends the search, from any thread.
    repeatable
        Whether nothing but the end of the time may depend on the clock.
    """

    def __init__(
        self,
        time_limit: float = float("inf"),
        *,
        interrupt: threading.Event | None = None,
        repeatable: bool = False,
    ) -> None:
        self._start = time.monotonic()
        self._deadline = self._start + time_limit
        self.interrupt = interrupt or threading.Event()
        self.repeatable = repeatable

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
        seconds = self.allow(min(most, share * self.remaining))
        return Control(seconds, interrupt=self.interrupt, repeatable=self.repeatable)

    def allow(self, seconds: float) -> float:
        """So many seconds of what is left; all that is left where the result has to repeat."""
        return self.remaining if self.repeatable else min(seconds, self.remaining)

    @contextlib.contextmanager
    def catching_interrupts(self, noted: Callable[[], None] | None = None) -> Iterator[None]:
        """Turn the first Ctrl-C into `interrupt`; a second one raises `KeyboardInterrupt`.

        `noted` is called at the first. Signals reach the main thread only; elsewhere this does
        nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self.interrupt.is_set():
                raise KeyboardInterrupt
            self.interrupt.set()
            if noted is not None:
                noted()

        previous = signal.signal(signal.SIGINT, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def interrupts_later(noted: Callable[[], None] | None = None) -> Iterator[None]:
    """Keep the first Ctrl-C back until the end; a second one raises `KeyboardInterrupt` at once.

    `noted` is called at the first, to say so.
    For code that calls back into Python from C, where an exception is printed and lost.
    """
    control = Control()
    with control.catching_interrupts(noted):
        yield
    if control.interrupt.is_set():
        raise KeyboardInterrupt
