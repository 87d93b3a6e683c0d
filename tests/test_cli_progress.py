"""What a running solve says, to a person and to a log."""

from __future__ import annotations

import io
import sys
import threading
import time
from typing import TYPE_CHECKING

from lowtide.commands.progress import phases, watch
from lowtide.commands.smallest import _Bounds
from lowtide.frontends.chains import linear_chain
from lowtide.report.scale import Scale
from lowtide.solver.live import FIRST, PACE, LiveProgress, LogProgress, log_lines
from lowtide.solver.progress import Event, describe

if TYPE_CHECKING:
    import pytest


class Clock:
    """A clock that tests set."""

    now = 7.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


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
    clock = Clock()
    progress = LogProgress(clock)
    for seconds, best in ((0.0, 200), (0.5, 190), (1.2, 180), (1.3, 170), (50.0, 170), (52.0, 160)):
        clock.now = 7.0 + seconds
        progress.update(Event(seconds, best, None, 100, ""))
    clock.now = 67.0
    progress.update(Event(60.0, 170, None, 100, ""))
    clock.now = 106.0
    progress.update(Event(99.0, 170, None, 100, ""))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines] == ["100.000%", "80.000%", "70.000%"]


def test_a_log_is_never_silent_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing is new, what goes on is said again: soon at first, then at a fixed pace."""
    clock = Clock()
    progress = LogProgress(clock)
    progress.say("thinking")
    told: list[int] = []
    for second in range(60):
        clock.now = 7.0 + second
        progress.tick()
        told += [second] * len(capsys.readouterr().err.splitlines())
    assert told == [int(FIRST + n * PACE) for n in range(6)]
    progress.print("something else ...")
    assert capsys.readouterr().err == "lowtide: something else ...\n"
    clock.now += PACE
    progress.tick()
    assert capsys.readouterr().err.endswith("something else ...\n")


def test_news_put_the_next_repetition_off(capsys: pytest.CaptureFixture[str]) -> None:
    """Only silence is broken: a line that has just come is not repeated."""
    clock = Clock()
    progress = LogProgress(clock)
    for second in range(30):
        clock.now = 7.0 + second
        progress.update(Event(second, 200 - second, None, 100, ""))
        capsys.readouterr()
        progress.tick()
        assert capsys.readouterr().err == ""


def test_phases_that_take_long_tell_how_far_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A log hears of a phase once, and again from a thread of its own while the work goes on."""
    with phases(quiet=False) as now:
        now.begin("replaying")
        now.say("training step 3 of 20")
        now.update(Event(0.0, 150, 100, 100, "start"))
        end = time.monotonic() + FIRST + 2.0
        err = ""
        while "step 3" not in err and time.monotonic() < end:
            time.sleep(0.05)
            err += capsys.readouterr().err
    first, second = err.splitlines()
    assert first == "lowtide: replaying ..."
    assert "training step 3 of 20: overhead 50.000%" in second
    assert not any(thread.name == "lowtide-progress" for thread in threading.enumerate())


def test_nobody_listening_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without stderr, or with a closed one, works on."""
    for stream in (None, Screen()):
        if stream is not None:
            stream.close()
        monkeypatch.setattr(sys, "stderr", stream)
        with log_lines() as lines:
            lines.print("news")


def test_bounds_of_the_smallest_budget_are_told_in_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`lowtide smallest` names what was reached and what is out of reach, not overheads."""
    scale = Scale.of(linear_chain(6))
    with phases(quiet=False) as now:
        bounds = _Bounds(now, scale)
        bounds.update(Event(0.0, None, None, 0, "compiling"))
        assert now.text == ""
        reached, bound = scale.base_peak_bytes - 1, scale.resident_bytes + 1
        bounds.update(Event(0.0, reached, bound, reached, "search"))
        words = f"found {scale.memory(reached)}; nothing below {scale.memory(bound)}"
        assert now.text == f"{words} in base order"
    assert capsys.readouterr().err == ""


def test_quiet_means_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Under --quiet nothing listens and nothing is printed."""
    with watch("solving", quiet=True) as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def test_lines_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets the label and plain lines, without control characters."""
    with watch("solving x", quiet=False) as progress:
        assert isinstance(progress, LogProgress)
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
