"""Two operators in one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule

from ...plans import plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


class _Linear(nn.Module):
    """A layer with and one without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.a(x).relu()).square().mean()


class _Transposed(_Linear):
    """The transposed weight is read elsewhere, too, before and after."""

    def forward(self, x: torch.Tensor) -> Any:
        turned = self.a.weight.t()
        y = (turned * 2).sum() + torch.addmm(self.a.bias, x, turned).relu().sum()
        return y + (turned * turned).sum() + self.b(torch.mm(x, turned)).sum()


class _Kept(_Linear):
    """A sum whose dimension is needed, and one whose dimension is dropped."""

    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x)
        return (y / y.exp().sum(0, keepdim=True)).sum() + y.sum([0], keepdim=True).view(
            6
        ).relu().sum()


class _Back(_Linear):
    """Dropped dimensions that a view brings back: the sum as it was is read under another name."""

    def forward(self, x: torch.Tensor) -> Any:
        y = self.a(x).tanh()
        variance, mean = torch.var_mean(x, 0)
        scaled = ((x - mean) / (variance + 1).sqrt()).sum()
        kept = y.sum([0], keepdim=True).view(6).view(1, 6)
        return (y - y.mean(0)).square().mean() + (y + y.logsumexp(0)).sum() + scaled + kept.sum()


class _Mean(nn.Module):
    """The mean of what another module returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x).square().mean()


def _module(model: nn.Module, x: torch.Tensor) -> Any:
    captured = capture(model, x)
    return replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


@pytest.mark.parametrize("kind", [_Linear, _Transposed, _Kept, _Back])
def test_bits_stay_the_same(kind: type[nn.Module]) -> None:
    """Loss and gradients are those of plain PyTorch, bit for bit."""
    torch.manual_seed(0)
    model, x = kind(), torch.randn(5, 4)
    assert verify(model, _module(model, x), [x], measure=False).ok


def test_a_product_takes_its_transpose_along() -> None:
    """Forward calls `linear`, and makes no transpose that nothing else reads."""
    code = _module(_Linear(), torch.randn(5, 4)).code
    forward = code[: code.index("def backward")]
    assert forward.count("= linear(") == 2
    assert "= t(" not in forward
    assert "addmm(" not in forward
    assert "linear(" not in code[code.index("def backward") :]


def test_a_transpose_that_is_there_is_used() -> None:
    """What was made for another reader is not made again."""
    code = _module(_Transposed(), torch.randn(5, 4)).code
    forward = code[: code.index("def backward")]
    assert forward.count("= t(") == 1
    assert "addmm(" in forward


def test_sums_drop_dimensions_that_nobody_reads() -> None:
    """The gradient of a bias is one call; a sum that is read as it is keeps its dimension."""
    code = _module(_Linear(), torch.randn(5, 4)).code
    assert "[0], False)" in code[code.index("def backward") :]
    kept = _module(_Kept(), torch.randn(5, 4)).code
    forward = kept[: kept.index("def backward")]
    assert "[0], True)" in forward
    assert "[0], False)" in forward
