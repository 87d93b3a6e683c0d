"""`fit`: capture, solve and replay in one call."""

from __future__ import annotations

import io
import logging
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.plans import plan_cache
from lowtide.runtime.plans.fit import fit
from lowtide.solver.errors import InfeasibleError, InputError
from lowtide.solver.live import LiveProgress
from lowtide.solver.plan import Stop
from lowtide.solver.solve import solve
from lowtide.solver.units import format_bytes, format_percent

from ..models import Mlp, make, square

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph
    from lowtide.solver.plan import Plan
    from lowtide.solver.progress import Event

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_budget_is_kept(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module trains as the plain one does, and its measured peak is within the budget."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model, batches = Mlp(width=8, depth=6), [torch.randn(50, 8) for _ in range(2)]
    module = fit(model, batches[0], memory_budget="60%", loss_fn=square, time_limit=5)
    found = verify(model, module, batches, repeats=1)
    assert found.ok, found.first_difference
    assert module.plan.schedule.recomputes() > 0

    def step() -> torch.Tensor:
        loss: torch.Tensor = module(batches[0])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    resident = module.captured.graph.resident_bytes
    assert resident + measure_peak(step).peak_bytes == module.plan.peak_bytes
    assert module.plan.peak_bytes <= module.plan.budget_bytes


def test_an_impossible_budget_is_refused(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget below what any schedule needs raises, and names one that can be met."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    case = make("mlp")
    with pytest.raises(InfeasibleError) as caught:
        fit(case.model, case.batch(0), memory_budget=1000, loss_fn=case.loss_fn, time_limit=5)
    assert caught.value.smallest_bytes is not None


@pytest.mark.parametrize("times", ["foo", "none", None])
def test_unknown_times_are_refused(times: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names the choices, before anything is captured."""

    def capture(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be captured")

    monkeypatch.setattr(import_module("lowtide.runtime.plans.fit"), "capture", capture)
    with pytest.raises(InputError, match=f"times={times!r}: choose roofline, measured or calib"):
        fit(Mlp(), torch.randn(2, 8), memory_budget="80%", loss_fn=square, times=times)


def test_ctrl_c_while_planning_is_told_of(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The best plan so far is used, also for further batches, and a warning says so."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))

    class Hasty:
        """Presses Ctrl-C at the first plan."""

        pressed = False

        def update(self, event: Event) -> None:
            if event.incumbent_ns is not None and not self.pressed:
                self.pressed = True
                signal.raise_signal(signal.SIGINT)

    def hastily(graph: Graph, budget: int, *, progress: Any, **more: Any) -> Plan:
        return solve(graph, budget, progress=Hasty(), **more)

    monkeypatch.setattr(plan_cache, "solve", hastily)
    model = Mlp(width=8, depth=8)
    with caplog.at_level(logging.WARNING, "lowtide"):
        module = fit(
            model, torch.randn(50, 8), memory_budget="40%", loss_fn=square, times="roofline",
            shapes=[torch.randn(40, 8)], group=None,
        )  # fmt: skip
    assert module._shapes is not None
    plans = [module.plan, module._shapes.others[0].plan]
    told = [text for text in caplog.messages if "interrupted" in text]
    assert len(told) == len(plans)
    for plan, text in zip(plans, told, strict=True):
        assert plan.stopped_by is Stop.INTERRUPTED
        assert "best plan is used" in text
        assert f"peak {format_bytes(plan.peak_bytes)} of" in text
        assert f"overhead {format_percent(plan.overhead)}" in text


class _Screen(io.StringIO):
    """A stderr of which `watched` says whether it is a terminal."""

    def __init__(self, watched: bool) -> None:
        super().__init__()
        self.watched = watched

    def isatty(self) -> bool:
        """As told."""
        return self.watched


@pytest.mark.parametrize(("watched", "quiet"), [(True, False), (True, True), (False, False)])
def test_a_terminal_is_told_what_goes_on(
    watched: bool,
    quiet: bool,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On one line of stderr, and at last what came of it, unless `quiet`."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    screen, told = _Screen(watched), list[str]()
    say = LiveProgress.say

    def listen(line: LiveProgress, text: str) -> None:
        told.append(text)
        say(line, text)

    monkeypatch.setattr(LiveProgress, "say", listen)
    monkeypatch.setattr(sys, "stderr", screen)
    model, batch = Mlp(width=8, depth=6), torch.randn(50, 8)
    fit(
        model, batch, memory_budget="80%", loss_fn=square, shapes=[batch], time_limit=5, quiet=quiet
    )
    assert capsys.readouterr().out == ""
    if not watched or quiet:
        assert not told
        assert screen.getvalue() == ""
        return
    for start in ("capturing the step", "measuring operators: 0 of ", "planning ", "overhead "):
        assert any(text.startswith(start) for text in told), start
    assert "planning another kind of call: 1 of 1" in told
    assert " s  " in screen.getvalue()
    assert screen.getvalue().count("step is predicted to take") == 1  # the second kind is the first
