"""A search for ever smaller peaks, in a thread beside the proofs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .sequence import SequenceSearch

if TYPE_CHECKING:
    from ..control import Control
    from ..graph import Graph
    from .anneal import Found

# First temperature in times of an average op, and share of moves that change the order only.
CYCLES: tuple[tuple[float, float], ...] = ((10.0, 0.3), (30.0, 0.1), (3.0, 0.3), (10.0, 0.0))
MOVES_PER_OP, MOST_MOVES = 2000, 800_000
PRICE = 10.0  # of all bytes in times of the step: time hardly counts


class Deeper:
    """Cycles of annealing towards `target` bytes, each from the best there is.

    Parameters
    ----------
    begin
        Where the first cycle begins.
    target
        Bytes without resident ones at which it ends.
    any_order
        Whether ops may change places.
    """

    def __init__(
        self, graph: Graph, seed: int, begin: Found, target: int, control: Control, *,
        any_order: bool,
    ) -> None:  # fmt: skip
        self.best = begin
        self._search = SequenceSearch(graph, 1 + seed * 1_000_003)
        self._target = target
        self._control = control
        self._any_order = any_order
        self._moves = min(MOST_MOVES, MOVES_PER_OP * len(graph.ops))
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def finish(self) -> Found:
        """End, and give the best.

        Raises
        ------
        Exception
            Whatever the search broke down with.
        """
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.best

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # raised again where the result is asked for
            self._error = error

    def _run(self) -> None:
        cycle = 0
        while self.best.peak > self._target and not self._control.over and not self._stop.is_set():
            heat, order = CYCLES[cycle % len(CYCLES)]
            found = self._search.improve(
                self.best.computes, self._target, control=self._control,
                moves=self._moves * 2 ** min(cycle // len(CYCLES), 4), heat=heat,
                order=order if self._any_order else 0.0, price=PRICE, stop=self._stop,
            )  # fmt: skip
            if (found.peak, found.time) < (self.best.peak, self.best.time):
                self.best = found
            cycle += 1
