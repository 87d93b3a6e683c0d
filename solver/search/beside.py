"""The sequence search as a companion of the integer programs, in a thread of its own.

It looks for schedules where the programs do not: in other orders, and with several recomputations
of an op between two ops of the base order. With a number of moves it takes nothing from the
programs once it runs, so that its result depends on the seed alone, however the threads are timed;
without, it goes on from the best schedule that there is, whoever found it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..warn import warn_user
from .sequence import SequenceSearch

if TYPE_CHECKING:
    from ..graph import Graph
    from ..incumbent import Incumbent
    from .anneal import Found

ORIGIN = "sequence search"
# First temperature in times of an average op, and share of moves that change the order only.
CYCLES: tuple[tuple[float, float], ...] = ((0.75, 0.3), (4.0, 0.1), (0.75, 0.3), (2.0, 0.5))
MOVES_PER_OP = 1500  # of the first cycle
MOST_MOVES = 600_000


class Beside:
    """Cycles of annealing from given starts.

    Parameters
    ----------
    graph, incumbent, seed
        What is searched, whom finds are offered to, and the seed of the moves.
    starts
        Sequences to begin from; the first one is the best within the budget, if there is one.
    any_order
        Whether ops may change places.
    moves
        Moves of all cycles together; None: no end.
    """

    def __init__(
        self,
        graph: Graph,
        incumbent: Incumbent,
        seed: int,
        starts: list[Found],
        *,
        any_order: bool = True,
        moves: int | None = None,
    ) -> None:
        self._search = SequenceSearch(graph, seed * 1_000_003)
        self._incumbent = incumbent
        # What is to repeat must not hear of, nor be heard by, threads whose timing varies.
        self._mine = incumbent if moves is None else incumbent.apart()
        self._starts = starts
        self._first = min(MOST_MOVES, MOVES_PER_OP * len(graph.ops))
        self._any_order = any_order
        self._left = moves
        self._base_ns = int(graph.arrays.time.sum())
        self._cycle = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def run(self, cycles: int | None = None) -> None:
        """Run so many cycles here and now; all there is time for, or moves, if that is given."""
        endless = cycles is None or self._left is not None
        while not self._over and (endless or self._cycle < (cycles or 0)):
            self._one_cycle()

    def start(self) -> None:
        """Run until `finish` in a thread."""
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def finish(self, cycles: int) -> None:
        """Wait until so many cycles, or all moves if given, are done; end; hand over the best.

        A search that broke down is told of in a warning: it must not cost what others found.
        """
        while self._thread is not None and self._thread.is_alive() and not self._over:
            if self._left is None and self._cycle >= cycles:
                break
            self._thread.join(0.02)
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._incumbent.offer(self._mine.best, ORIGIN)
        if self._error is not None:
            warn_user(f"the sequence search ended early: {self._error!r}")

    def give_way(self, cycles: int) -> bool:
        """End for another use of the thread, unless cycles or moves were promised."""
        if self._left is not None or self._cycle < cycles:
            return False
        self._stop.set()
        return True

    @property
    def _over(self) -> bool:
        best = self._mine.best
        perfect = best is not None and best.time <= self._base_ns
        done = self._left is not None and self._left <= 0
        return self._stop.is_set() or self._incumbent.control.over or perfect or done

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:  # handed to the thread that waits for this one
            self._error = error

    def _one_cycle(self) -> None:
        heat, order = CYCLES[self._cycle % len(CYCLES)]
        start = self._starts[self._cycle % len(self._starts)]
        best = self._mine.best
        # First what was given: at a tight budget the best is the smallest that there is, and slow.
        if self._left is None and best is not None and self._cycle % 2 == 0 and self._cycle > 0:
            start = best
        moves = self._first * 2 ** min(self._cycle, 4)
        if self._left is not None:
            moves = min(moves, self._left)
            self._left -= moves
        room = self._incumbent.room
        found = self._search.improve(
            start.computes, room, control=self._incumbent.control, moves=moves, heat=heat,
            order=order if self._any_order else 0.0, stop=self._stop,
        )  # fmt: skip
        self._mine.offer(found, ORIGIN)
        if found.peak <= room and (self._starts[0].peak > room or found.time < start.time):
            self._starts[0] = found
        self._cycle += 1
