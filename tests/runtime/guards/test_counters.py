"""Numbers that the step changes itself, and globals that it does not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError
from lowtide.solver.schedule import Schedule

from ...frontends.models import Lambda, rows
from ..schedules import plan_of

count = 0
lin, scale = 3.0, 2.0


def _next(holder: Any) -> int:
    holder.steps += 1
    return int(holder.steps)


@pytest.mark.parametrize("use", ["nothing", "factor", "constant", "branch", "shape"])
def test_a_count_that_the_step_computes_with_is_refused(use: str) -> None:
    """As a factor, in a new tensor, as a branch, as a size; a mere counter passes."""
    holder = SimpleNamespace(steps=1)

    def loss(out: torch.Tensor) -> Any:
        now = _next(holder)
        if use == "factor":
            return out.square().mean() * now
        if use == "constant":
            return (out.square() * torch.tensor([float(now)])).mean()
        if use == "branch":
            return out.square().mean() if now % 2 else out.abs().mean()
        if use == "shape":
            return out[: now % 3].square().mean()
        return out.square().mean()

    if use == "nothing":
        assert capture(nn.Linear(4, 4), rows(), loss, times="roofline").graph.ops
        return
    with pytest.raises(CaptureError, match="keep such a number in a tensor"):
        capture(nn.Linear(4, 4), rows(), loss, times="roofline")


def test_a_count_in_a_forward_is_refused() -> None:
    """The same below the model, in a global."""

    def forward(self: Any, x: torch.Tensor) -> Any:
        global count
        count += 1
        return (self.lin(x) * count).square().sum()

    model = Lambda(forward)
    with pytest.raises(CaptureError, match="count"):
        capture(model, rows(), times="roofline")


def test_an_attribute_is_not_the_global_of_its_name() -> None:
    """`self.lin` has nothing to do with a global `lin`; `scale` below is one that is read."""
    module = replay_of(Lambda(lambda self, x: self.lin(x).square().sum() * scale))
    globals()["lin"] = 4.0
    module(rows())
    globals()["scale"] = 3.0
    try:
        with pytest.raises(ReplayError, match="global scale"):
            module(rows())
    finally:
        globals()["scale"] = 2.0
        globals()["lin"] = 3.0


def replay_of(model: nn.Module) -> nn.Module:
    """A replay that keeps everything."""
    captured = capture(model, rows(), times="roofline")
    graph = captured.graph
    return replay(captured, plan_of(graph, Schedule.keep_everything(graph)))
