"""Autocast keeps the casts of leaves only: whether a tensor is one is part of the call."""

from __future__ import annotations

import copy
from functools import partial
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
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")
_LEAVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaf": lambda x: x.clone().requires_grad_(),
    "with a history": lambda x: x.clone().requires_grad_() * 1.0,
    "a leaf that is a view": lambda x: torch.stack([x, x])[0].requires_grad_(),
    "without a gradient": torch.clone,
}


class Twice(nn.Module):
    """Two narrow uses of an argument, or one."""

    def __init__(self, uses: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(uses))

    def forward(self, x: torch.Tensor) -> Any:
        """The sum of some layers."""
        with torch.autocast("cpu", torch.bfloat16):
            return sum(layer(x).tanh() for layer in self.layers) * 1.0


def _replayed(model: nn.Module, x: torch.Tensor) -> ReplayModule:
    captured = capture(copy.deepcopy(model), x, times="none")
    return replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


def _gradients(net: nn.Module, x: torch.Tensor) -> list[Any]:
    net.zero_grad()
    if x.requires_grad:
        x.retain_grad()
        x.grad = None
    net(x).float().square().sum().backward()
    return [x.grad, *(p.grad for p in net.parameters())]


def _same(net: nn.Module, module: nn.Module, make: Callable[[], torch.Tensor]) -> bool:
    pairs = zip(_gradients(net, make()), _gradients(module, make()), strict=True)
    return all((a is b) if a is None else torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("then", ["leaf", "with a history", "a leaf that is a view"])
def test_a_plan_is_for_leaves_or_for_others(then: str) -> None:
    """Gradients are added up in the narrow type, or in the wide one."""
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(32, 16)
    module = _replayed(model, _LEAVES[then](x))
    for now, make in _LEAVES.items():
        if now != "without a gradient" and (now == "leaf") != (then == "leaf"):
            with pytest.raises(ReplayError, match=r"argument 0 is .*leaf, .*the plan was made for"):
                module(make(x))
        else:
            assert _same(model, module, partial(make, x)), now


def test_it_is_not_asked_where_it_makes_no_difference() -> None:
    """One use, or no autocast: the same plan serves both."""
    torch.manual_seed(0)
    x = torch.randn(32, 16)
    for model in (Twice(1), nn.Sequential(nn.Linear(16, 16), nn.Tanh())):
        module = _replayed(model, _LEAVES["leaf"](x))
        for make in _LEAVES.values():
            assert _same(model, module, partial(make, x))


def test_fit_plans_both() -> None:
    """The other kind of tensor is another kind of call."""
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(32, 16)
    module = lowtide.fit(copy.deepcopy(model), _LEAVES["leaf"](x), memory_budget="100%")
    for make in (*_LEAVES.values(), *_LEAVES.values()):
        assert _same(model, module, partial(make, x))


def test_weights_that_are_computed() -> None:
    """A weight that is put in the place of a parameter for a call may be no leaf."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    model = Twice()
    model.layers[0] = model.layers[1] = layer
    x = torch.randn(32, 16)
    module = _replayed(model, x)
    computed = layer.weight * 1.0
    names = {f"layers.{i}.weight": computed for i in range(2)}
    with pytest.raises(ReplayError, match=r"layers\.0\.weight is no leaf, and cast for each use"):
        torch.func.functional_call(module, names, (x,))
