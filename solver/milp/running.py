"""An integer program in a thread of its own: waited for, left to go on, or cancelled."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..control import Control
from .problem import INF, Answer, Outcome, Peek

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..array_types import Floats
    from .problem import Backend, Effort, Problem
    from .staged import StagedProgram


class Running:
    """One solve that is under way; it ends by itself when all the time of
    `effort.control` has passed.

    Attributes
    ----------
    cutoff
        No bound above it counts.
    """

    def __init__(
        self, backend: Backend, problem: Problem, effort: Effort, *, cutoff: float,
        start: Floats | None,
    ) -> None:  # fmt: skip
        self.cutoff = cutoff
        self._problem = problem
        self._peek = Peek()
        self._control = Control(effort.control.remaining)
        self._answer: Answer | None = None
        self._error: BaseException | None = None

        def work() -> None:
            try:
                self._answer = backend.solve(
                    problem,
                    replace(effort, control=self._control, time_limit=self._control.remaining),
                    cutoff=cutoff,
                    start=start,
                    peek=self._peek,
                )
            except BaseException as error:  # raised again in the thread that asks
                self._error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return not self._thread.is_alive()

    def wait(self, enough: Callable[[], bool]) -> bool:
        """Wait until it is done, which is what is returned, or `enough`."""
        while not self.done and not enough():
            self._thread.join(0.05)
        return self.done

    def so_far(self) -> Answer:
        """The best solution up to now, without a bound."""
        values = self._peek.values
        if values is None:
            return Answer(Outcome.UNKNOWN, None, INF, -INF)
        cost = float(self._problem.cost @ values) + self._problem.offset
        return Answer(Outcome.FEASIBLE, values, cost, -INF)

    def finish(self) -> Answer:
        """The answer; ends the solve if it is not done."""
        self._control.interrupt.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


@dataclass(frozen=True)
class Solved:
    """An answer, the program it is one to, and the cutoff it was sought below."""

    program: StagedProgram
    answer: Answer
    cutoff: float
