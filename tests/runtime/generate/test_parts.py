"""Tensors that lie side by side in one memory are each their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay

from ...frontends.models import Lambda
from ...plans import recomputing
from ..schedules import plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


def flattened(model: nn.Module) -> nn.Module:
    """The same model, its parameters views of one buffer as flat optimizers and cuDNN have them."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    start = 0
    for p in model.parameters():
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    return model


def same_step(plain: Any, module: Any, batch: tuple[torch.Tensor, ...]) -> bool:
    """Whether both give the same gradients."""
    found = []
    for subject in (plain, module):
        subject.zero_grad()
        subject(*batch).square().mean().backward()
        found.append([p.grad for p in subject.parameters()])
    return all(a is b or torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("every", [1, 100])
def test_parameters_in_one_buffer(every: int) -> None:
    """Layers of one shape: their transposes look alike, and lie in one storage."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.Tanh())]
    plain = nn.Sequential(*layers)
    model = flattened(copy.deepcopy(plain))
    captured = capture(model, torch.randn(3, 4), times="none")
    module = replay(captured, plan_of(captured.graph, recomputing(captured.graph, every)))
    for _ in range(2):
        assert same_step(plain, module, (torch.randn(3, 4),))


@pytest.mark.parametrize("every", [1, 100])
def test_parts_of_one_batch(every: int) -> None:
    """Two views of a batch, as of pairs that are compared."""

    def body(self: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.tanh(a.t() @ self.lin(a)) * (b.t() @ self.lin(b)).sin()

    torch.manual_seed(0)
    plain = Lambda(body)
    model = copy.deepcopy(plain)
    captured = capture(model, torch.randn(6, 4).chunk(2), times="none")
    module = replay(captured, plan_of(captured.graph, recomputing(captured.graph, every)))
    assert same_step(plain, module, torch.randn(6, 4).chunk(2))
