"""Methods that run long on large graphs end with the time that they have."""

from __future__ import annotations

import threading

import pytest

from lowtide.frontends.chains import transformer
from lowtide.solver.baselines import PUBLISHED
from lowtide.solver.baselines.treewidth import executions
from lowtide.solver.control import Control
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

GRAPH = transformer(4)


class Counted(Control):
    """Over once it was asked so many times."""

    def __init__(self, asked: int) -> None:
        super().__init__(interrupt=threading.Event())
        self.left = asked

    @property
    def over(self) -> bool:
        """Count down."""
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("name", ["dtr", "dtr_eq", "lru"])
def test_evictions_end_with_the_time(name: str) -> None:
    """They ask at every op, and then give the best of what they have."""
    peak = simulate(GRAPH, Schedule.keep_everything(GRAPH)).peak_bytes
    control = Counted(50)
    schedule = PUBLISHED[name](GRAPH, peak * 6 // 10, control)
    assert schedule is not None
    assert control.left > -50
    assert simulate(GRAPH, schedule).peak_bytes <= peak


@pytest.mark.parametrize("kind", ["tree", "path"])
def test_decompositions_end_with_the_time(kind: str) -> None:
    """A schedule that is not finished is none."""
    assert executions(GRAPH, kind, Counted(20)) is None  # type: ignore[arg-type]
    assert executions(GRAPH, kind, Counted(10**9)) is not None  # type: ignore[arg-type]
