"""Compiled searches: made once on a machine, which takes half a minute, then read from a cache."""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING

from .baselines import compile_heuristics
from .blocks.plan import compile_blocks
from .control import interrupts_later
from .search.anneal import compile_search
from .search.sequence import compile_sequences

if TYPE_CHECKING:
    from collections.abc import Callable

NOTE = "compiling the search (once per machine)"
_log = logging.getLogger(__name__)
LATER = "interrupted: ends once this part is compiled; Ctrl-C again ends at once"
PATIENCE = 3.0  # seconds; reading all of it from the cache takes one


@functools.cache
def _log_once(text: str) -> None:
    """What is compiled comes in parts, which are one to whoever waits."""
    _log.warning("%s", text)


def compile_parts(
    tell: Callable[[str], None] | None = None,
    *,
    searches: bool = True,
    sequences: bool = True,
    blocks: bool = True,
) -> None:
    """Compile what a solve will run, or load it; its clock starts after.

    Parameters
    ----------
    tell
        Told what is going on if it takes long; None: a line in the log, which Python shows.
    searches, sequences, blocks
        Beside the heuristics: local searches, the search over sequences, blocks.
    """
    say = _log_once if tell is None else tell
    timer = threading.Timer(PATIENCE, say, (NOTE,))
    timer.daemon = True
    timer.start()
    try:
        for part, wanted in (
            (compile_heuristics, True),
            (compile_search, searches),
            (compile_sequences, sequences),
            (compile_blocks, blocks),
        ):
            if wanted:
                with interrupts_later(lambda: say(LATER)):
                    part()
    finally:
        timer.cancel()
