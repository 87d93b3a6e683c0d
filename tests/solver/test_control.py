"""Ctrl-C: kept back where an exception would be lost."""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lowtide.solver.clauses import solve_until
from lowtide.solver.control import Control, interrupts_later
from lowtide.solver.live import live_line

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def pythons_handler() -> Iterator[None]:
    """Ctrl-C as in a terminal: programs that a shell puts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def compiling(signals: int, steps: list[str]) -> None:
    """Work that Ctrl-C falls into so many times."""
    with interrupts_later():
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        steps.append("compiled")


def test_ctrl_c_waits_for_the_end_of_compilation() -> None:
    """What runs goes on, then the interrupt is raised; the handler is Python's again."""
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        compiling(1, steps)
    assert steps == ["compiled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    compiling(0, steps)


def test_a_second_ctrl_c_does_not_wait() -> None:
    """Nobody has to wait for half a minute of compilation."""
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        compiling(2, steps)
    assert not steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_clause_learning_ends_with_its_control() -> None:
    """Long before it could prove that 14 pigeons have no place in 13 holes; no thread is left."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    model = cp_model.CpModel()
    inside = [[model.new_bool_var("") for _ in range(13)] for _ in range(14)]
    for row in inside:
        model.add_bool_or(row)
    for hole in range(13):
        for one in range(14):
            for other in range(one):
                model.add_bool_or([inside[one][hole].Not(), inside[other][hole].Not()])
    solver, before = cp_model.CpSolver(), threading.active_count()
    solver.parameters.num_workers = 1
    begun = time.monotonic()
    status = solve_until(solver, model, Control(0.2))
    assert time.monotonic() - begun < 20.0
    assert status in (int(cp_model.UNKNOWN), int(cp_model.INFEASIBLE))
    assert threading.active_count() == before
    assert not solver.parameters.catch_sigint_signal  # or Ctrl-C could end the process


@pytest.mark.parametrize("gone", [True, False])
def test_nothing_is_shown_where_stderr_is_closed(
    gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As services leave it; the work inside goes on."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if gone else closed)
    with live_line() as live:
        assert live is None
