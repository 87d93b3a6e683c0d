"""`fit`: capture, solve and replay in one call."""

from __future__ import annotations

import io
import sys

import pytest
import torch

from lowtide.runtime.fit import fit
from lowtide.runtime.meter import measure_peak
from lowtide.runtime.verify import verify
from lowtide.solver.errors import InfeasibleError
from lowtide.solver.live import LiveProgress

from .models import Mlp, make, square

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
    """On one line of stderr, unless `quiet`; a log gets none of it."""
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
