"""Losses outside of the module send gradients in layouts of their own."""

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

from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("one_thread")

_LOSSES: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda out: out.sum() * 128,
    "mean": lambda out: out.mean(),
    "rows": lambda out: out.mean(0).square().sum(),
    "slice": lambda out: out[:, :1].mean(),
    "dense": lambda out: out.square().mean(),
}


def _linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(10, 10), nn.GELU(), nn.Linear(10, 10)), torch.randn(33, 10)


def _norm() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10)), torch.randn(33, 10)


def _layer_norm() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10)), torch.randn(33, 10)


def _group_norm() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6)), torch.randn(3, 4, 9, 9)


def _last() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))
    x = torch.randn(3, 4, 9, 9).contiguous(memory_format=torch.channels_last)
    return model.to(memory_format=torch.channels_last), x  # type: ignore[call-overload]


def _gradients(run: nn.Module, x: torch.Tensor, loss: Callable[[torch.Tensor], Any]) -> list[Any]:
    run.zero_grad()
    loss(run(x)).backward()
    return [parameter.grad for parameter in run.parameters()]


@pytest.mark.parametrize("make", [_linear, _norm, _layer_norm, _group_norm, _last])
def test_layouts_of_gradients_are_those_of_the_plain_step(
    make: Callable[[], tuple[nn.Module, torch.Tensor]],
) -> None:
    """Sums and means send one number, expanded: kernels round otherwise for it."""
    torch.manual_seed(0)
    model, x = make()
    captured = capture(model, x, times="none")
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    plain = copy.deepcopy(model)
    for name, loss in _LOSSES.items():
        pairs = zip(_gradients(plain, x, loss), _gradients(module, x, loss), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


def test_a_layout_that_would_spread_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Plain PyTorch would go on transposed: one log line, once."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(10, 10), nn.GELU()), torch.randn(33, 10)
    captured = capture(model, x, times="none")
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            _gradients(module, x, lambda out: out.t().square().mean())
            _gradients(module, x, lambda out: out.mean())
    told = [record.message for record in caplog.records if record.name.endswith("tangents")]
    assert len(told) == 1
    assert "strides (1, 33)" in told[0]
