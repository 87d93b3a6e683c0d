"""A replayed module inside a larger model: gradients of its input are passed on as they are."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.runtime.step.passed_on import clone_as_it_is
from lowtide.solver.schedule import Schedule

from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured

pytestmark = pytest.mark.usefixtures("one_thread")
_BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "expanded": lambda x, _: x.sum(),
    "rows": lambda x, w: x.sum(0) * w[0],
    "transposed": lambda x, _: x.t().contiguous().sin(),
    "with gaps": lambda x, w: torch.cat([x, w[:33]], 1).sin(),
    "handed through": lambda x, w: x + w[0],
    "a sum": lambda x, w: x.t().contiguous().sin() @ x + x.sum() * w,
}


class Body(nn.Module):
    """What is replayed."""

    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.body, self.weight = body, nn.Parameter(torch.randn(48, 48))

    def forward(self, x: torch.Tensor) -> Any:
        """Whatever `body` makes of input and weight."""
        return self.body(x, self.weight)


def _captured(name: str) -> Captured:
    torch.manual_seed(0)
    return capture(Body(_BODIES[name]), torch.randn(33, 48).requires_grad_())


def _gradients(net: nn.Module, tail: Callable[[Any], Any], *, twice: bool = False) -> list[Any]:
    """Of the layers before: batch norm and matrix products, which round by layout."""
    torch.manual_seed(1)
    first: Any = nn.Sequential(nn.Linear(48, 48), nn.BatchNorm1d(48), nn.Linear(48, 48))
    found: list[Any] = []
    middle: Any = nn.functional.gelu(first(torch.randn(33, 48)))
    middle.register_hook(lambda gradient: found.append((gradient.stride(), gradient.clone())))
    loss = tail(net(middle)) + middle.exp().mean()
    if twice:
        loss.backward(retain_graph=True)
    loss.backward()
    net.zero_grad()
    return [*(p.grad for p in first.parameters()), *(t for _, t in found), [s for s, _ in found]]


@pytest.mark.parametrize("name", _BODIES)
def test_as_in_plain_pytorch(name: str) -> None:
    """Bits of what comes before the module, and strides of the gradient that it passes on."""
    captured = _captured(name)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    plain = copy.deepcopy(captured.model)
    tails: list[Callable[[Any], Any]] = [lambda out: out.square().sum(), lambda out: out.sum()]
    for tail in tails:
        for twice in (False, True):
            *expected, strides = _gradients(plain, tail, twice=twice)
            *found, same = _gradients(module, tail, twice=twice)
            assert strides == same
            assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("name", _BODIES)
def test_leaves_get_a_copy(name: str) -> None:
    """Of an input without a history: in its layout."""
    captured = _captured(name)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    x = torch.randn(33, 48).requires_grad_()

    def step(net: nn.Module) -> Any:
        x.grad = None
        net.zero_grad()
        net(x).square().sum().backward()
        return x.grad

    expected, found = step(captured.model), step(module)
    assert torch.equal(expected, found)
    assert expected.stride() == found.stride()


def test_gaps_count() -> None:
    """A gradient with gaps takes what lies between, too; a budget without room for it warns."""
    captured = _captured("with gaps")
    graph, schedule = captured.graph, Schedule.keep_everything(captured.graph)
    peak = plan_of(graph, schedule).peak_bytes
    module = replay(captured, plan_of(graph, schedule, budget_bytes=peak))
    need = module._wiring.gaps_peak_bytes
    assert need > peak
    x = torch.randn(33, 48).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x).sum().backward()
        module.zero_grad()
        replay(captured, plan_of(graph, schedule, budget_bytes=need))(x * 1).sum().backward()
    with pytest.warns(UserWarning, match="more than its budget") as told:
        module(x * 1)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x * 1)


def test_copies_with_the_clone_as_it_is() -> None:
    """Expanded, transposed, with gaps, empty: in memory of their own."""
    base = torch.arange(60.0).reshape(6, 10)
    for tensor in (base.t(), base[:, 2:5], base[1:2].expand(4, 10), base[:0], base.sum()):
        copied = clone_as_it_is(tensor)
        assert copied.stride() == tensor.stride()
        assert torch.equal(copied, tensor)
        assert copied.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
