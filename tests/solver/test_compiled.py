"""The first compilation on a machine does not pass in silence."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from lowtide.frontends.chains import linear_chain
from lowtide.solver import compiled
from lowtide.solver.bracket import bracket
from lowtide.solver.solve import solve

if TYPE_CHECKING:
    from lowtide.solver.progress import Event


class Heard:
    """Keeps the notes of all events."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, event: Event) -> None:
        """Keep the note."""
        self.notes.append(event.note)


def test_a_slow_compilation_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Solves and brackets tell their progress, before anything else; a quick one is no news."""
    graph = linear_chain(6)
    solve(graph, "60%", time_limit=5.0)  # all is compiled now
    quick = Heard()
    solve(graph, "60%", time_limit=5.0, progress=quick)
    assert quick.notes
    assert compiled.NOTE not in quick.notes
    monkeypatch.setattr(compiled, "PATIENCE", 0.02)
    monkeypatch.setattr(compiled, "compile_search", lambda: time.sleep(0.2))
    slow, other = Heard(), Heard()
    solve(graph, "60%", time_limit=5.0, progress=slow)
    assert slow.notes.index(compiled.NOTE) == 0
    bracket(graph, time_limit=5.0, progress=other)
    assert other.notes.index(compiled.NOTE) == 0
    caplog.clear()
    compiled._log_once.cache_clear()
    compiled.compile_parts(sequences=False)  # nobody listens: then it is in the log
    assert caplog.messages == [compiled.NOTE]
    compiled.compile_parts()  # the rest of it is no news
    assert caplog.messages == [compiled.NOTE]


def test_ctrl_c_while_something_is_compiled_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler cannot be stopped in between: who presses it hears what comes of it."""
    monkeypatch.setattr(compiled, "compile_search", lambda: signal.raise_signal(signal.SIGINT))
    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        compiled.compile_parts(heard.append)
    assert heard == [compiled.LATER]
