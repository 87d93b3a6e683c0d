"""What a running solve says, to a person and to a log."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from lowtide.commands.progress import LineProgress, watch
from lowtide.solver.live import LiveProgress
from lowtide.solver.progress import Event, describe

if TYPE_CHECKING:
    import pytest


class Screen(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_events_are_told_as_overhead_bound_and_gap() -> None:
    """The numbers are fractions of the step without recomputation, the gap of the whole step."""
    text = describe(Event(1.0, 125, 110, 100, "search"))
    assert text == "overhead 25.000%  bound 10.000%  gap 12.000%  search"
    assert describe(Event(1.0, None, None, 100, "")) == "no plan yet"
    assert describe(Event(0.0, None, None, 0, "compiling")) == "compiling"
    assert describe(Event(1.0, None, 90, 100, "")) == "no plan yet  bound 0.000%"
    assert describe(Event(1.0, 5, None, 0, "x")) == "x"


def test_log_lines_come_ever_more_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    """A line at most every second at first, every tenth of the time later; repeats are dropped."""
    progress = LineProgress()
    for seconds, best in ((0.0, 200), (0.5, 190), (1.2, 180), (1.3, 170), (50.0, 170), (52.0, 160)):
        progress.update(Event(seconds, best, None, 100, ""))
    progress.update(Event(60.0, 170, None, 100, ""))
    progress.update(Event(99.0, 170, None, 100, ""))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines] == ["100.000%", "80.000%", "70.000%"]


def test_quiet_means_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Under --quiet nothing listens and nothing is printed."""
    with watch("solving", quiet=True) as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def test_lines_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets the label and plain lines, without control characters."""
    with watch("solving x", quiet=False) as progress:
        assert isinstance(progress, LineProgress)
        progress.update(Event(0.0, 150, 100, 100, "start"))
    err = capsys.readouterr().err
    assert "solving x" in err
    assert "overhead 50.000%" in err
    assert "\x1b" not in err


def test_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets one line that is redrawn and gone at the end."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with watch("solving x", quiet=False) as progress:
        assert isinstance(progress, LiveProgress)
        progress.update(Event(0.0, 150, 100, 100, "start"))
        assert "overhead 50.000%" in progress.__rich__().plain
    assert "solving x" in screen.getvalue()


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR set a terminal gets no colours."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with watch("solving x", quiet=False) as progress:
        assert progress is not None
        progress.update(Event(0.0, 150, 100, 100, "start"))
    assert "\x1b[3" not in screen.getvalue()
