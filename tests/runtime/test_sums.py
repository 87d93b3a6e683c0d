"""Gradients of weights that a model uses more than once, with more of them from elsewhere."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule

from .schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")
_SAID = "parameter table.weight is used more than once"


class Tied(nn.Module):
    """An embedding that is the last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lin = nn.Embedding(50, 64), nn.Linear(64, 64)

    def forward(self, tokens: torch.Tensor) -> Any:
        """Scores of all tokens."""
        return torch.tanh(self.lin(self.table(tokens))) @ self.table.weight.t()


def _tokens() -> torch.Tensor:
    return torch.randint(0, 50, (8, 16), generator=torch.Generator().manual_seed(1))


def _decay(model: Any) -> Any:
    return (model.table.weight * 0.37).sin().square().mean() * 100


def _square(model: Any) -> Any:
    return model(_tokens()).square().mean()


# Losses, and whether something comes before the sum.
_LOSSES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "alone": (_square, False),
    "later": (lambda model: _decay(model) + _square(model), False),
    "before": (lambda model: _square(model) + _decay(model), True),
    "two calls": (lambda model: _square(model) + model(_tokens()).sin().mean(), True),
}


def _replayed() -> tuple[Tied, ReplayModule]:
    torch.manual_seed(0)
    model = Tied()
    captured = capture(model, _tokens())
    keep = Schedule.keep_everything(captured.graph)
    return copy.deepcopy(model), replay(captured, plan_of(captured.graph, keep))


@pytest.mark.parametrize("name", _LOSSES)
def test_told_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line tells of a sum that is added to something; others are exact and need none."""
    loss, told = _LOSSES[name]
    model, module = _replayed()
    for _ in range(2):
        for run in (model, module):
            run.zero_grad()
            loss(run).backward()
        for a, b in zip(model.parameters(), module.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            torch.testing.assert_close(a.grad, b.grad)
            assert told or torch.equal(a.grad, b.grad)
    assert caplog.text.count(_SAID) == told


def test_more_backwards(caplog: pytest.LogCaptureFixture) -> None:
    """A gradient that is there already, or a backward without the module, is nothing to tell of."""
    caplog.set_level(logging.WARNING)
    _, module = _replayed()
    for _ in range(2):
        _square(module).backward()
    _decay(module).backward()
    torch.autograd.grad(_square(module) + _decay(module), list(module.parameters()))
    _square(module).backward()
    assert not caplog.text


def test_nothing_to_follow() -> None:
    """Where no weight is used twice, nothing is followed."""
    captured = capture(nn.Linear(4, 4), torch.ones(3, 4))
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    assert module._wiring.sums is None
    assert _replayed()[1]._wiring.sums is not None
