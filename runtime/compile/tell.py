"""Says what a long compilation is at, in lines ever further apart."""

from __future__ import annotations

import logging
import time

_log = logging.getLogger(__name__)
PATIENCE = 3.0  # seconds; a short compilation passes in silence


class Teller:
    """Logs what begins now, which Python shows on stderr, if much time has passed since the last.

    Attributes
    ----------
    about
        What is compiled.
    """

    def __init__(self) -> None:
        self.about = "a graph"
        self._start = time.monotonic()
        self._next = PATIENCE

    def __call__(self, what: str) -> None:
        """Say what begins now."""
        seconds = time.monotonic() - self._start
        if seconds >= self._next:
            self._next = 2 * seconds
            _log.warning("lowtide: torch.compile of %s: %s (%.0f s)", self.about, what, seconds)
