"""Ops that copy the whole storage behind a view are profiled with it."""

from __future__ import annotations

import torch
from torch import nn

import lowtide
from lowtide.runtime.meter import measure_peak


class _HalfScaled(nn.Module):
    """Writes through a view of half of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x) * 2.0
        y[..., :32].mul_(0.5)
        y[3].add_(1.0)
        loss: torch.Tensor = self.fc(y).square().mean()
        return loss


def test_peak_of_writes_through_views_is_exact() -> None:
    """Predicted and measured peak agree to the byte where a view of a larger storage is copied."""
    torch.manual_seed(0)
    model, x = _HalfScaled(), torch.randn(48, 64)
    captured = lowtide.capture(model, x, times="measured")
    plan = lowtide.solve(captured.graph, "max")
    module = lowtide.replay(captured, plan)
    module(x).backward()
    module.zero_grad(set_to_none=True)
    reading = measure_peak(lambda: module(x).backward())
    assert reading.peak_bytes + plan.resident_bytes == plan.peak_bytes
