"""One tensor given in several places: its gradients are added up in one, and code may ask."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ..schedules import plan_of

if TYPE_CHECKING:
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")


class Mixed(nn.Module):
    """Uses of one argument between those of the other."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """A sum whose gradients arrive in turn."""
        return x * 2 + y.sin() + x.exp() + y * x


def _replayed(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> ReplayModule:
    captured = capture(copy.deepcopy(model), batch)
    plan = plan_of(captured.graph, Schedule.keep_everything(captured.graph))
    return replay(captured, plan)


def _gradients(net: nn.Module, x: torch.Tensor, count: int) -> list[torch.Tensor | None]:
    x.grad = None
    net.zero_grad()
    out = net(*[x] * count)
    out = out[0] if isinstance(out, tuple) else out
    (out.square().sum() + x.sin().mean()).backward()
    return [x.grad, *(p.grad for p in net.parameters())]


@pytest.mark.parametrize("attention", [False, True])
def test_as_in_plain_pytorch(attention: bool) -> None:
    """Self-attention asks whether query, key and value are the same, and computes otherwise."""
    torch.manual_seed(0)
    model: nn.Module = nn.MultiheadAttention(16, 2) if attention else Mixed()
    x, count = torch.randn(5, 3, 16).requires_grad_(), 3 if attention else 2
    module = _replayed(model, (x,) * count)
    for a, b in zip(_gradients(model, x, count), _gradients(module, x, count), strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)
    batch = torch.randn(5, 3, 16).requires_grad_()
    assert lowtide.verify(
        copy.deepcopy(model),
        module,
        [(batch,) * count],
        loss_of=lambda out: _first(out).sum(),
        measure=False,
        optimizer=None,
    ).ok


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, tuple) else out


def test_no_plan_serves_the_other_call() -> None:
    """Neither way; labels that are the tokens are no such case."""
    x, y = torch.randn(4, 3).requires_grad_(), torch.randn(4, 3).requires_grad_()
    same, apart = _replayed(Mixed(), (x, x)), _replayed(Mixed(), (x, y))
    same(y, y)
    apart(y, x)
    with pytest.raises(ReplayError, match="another tensor than"):
        same(x, y)
    with pytest.raises(ReplayError, match="is the same tensor as"):
        apart(x, x)

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 9)

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
            return nn.functional.cross_entropy(self.table(tokens), labels)

    tokens = torch.arange(8)
    module = _replayed(Tokens(), (tokens, tokens))
    assert module(tokens, tokens.clone()).requires_grad
    assert module(tokens, tokens).requires_grad
