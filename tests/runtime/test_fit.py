"""`fit`: one call from a model to a module that trains within the budget."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.runtime.meter import measure_peak
from lowtide.solver.errors import InfeasibleError


def model_and_batch() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A small network whose activations outweigh its parameters."""
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(16, 1)), (torch.randn(512, 16),)


def loss_fn(out: torch.Tensor) -> torch.Tensor:
    """A scalar."""
    return out.square().mean()


def test_fit_trains_within_the_budget() -> None:
    """The same loss and gradients as the plain step, in less memory than it was given."""
    model, batch = model_and_batch()
    module = lowtide.fit(
        model, batch, "75%", loss_fn, times="roofline", method="greedy", time_limit=5
    )
    plain = loss_fn(model(*batch))
    plain.backward()  # type: ignore[no-untyped-call]
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()

    def step() -> torch.Tensor:
        loss: torch.Tensor = module(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    reading = measure_peak(step)
    assert torch.equal(reading.result, plain.detach())
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    assert module.plan.schedule.recomputes() > 0
    resident = module.captured.graph.resident_bytes
    assert resident + reading.peak_bytes <= module.plan.budget_bytes
    assert module.state_dict().keys() == model.state_dict().keys()


def test_fit_says_the_smallest_budget() -> None:
    """A budget below what any schedule needs is an error that knows a budget that works."""
    model, batch = model_and_batch()
    with pytest.raises(InfeasibleError) as caught:
        lowtide.fit(model, batch, "1%", loss_fn, times="roofline", method="sqrt_n")
    assert caught.value.smallest_bytes is not None
