"""Hooks of parameters and inputs behind unused outputs: called where plain PyTorch calls them."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.runtime.wiring import Wiring

from ...plans import recomputing
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")


class _Heads(nn.Module):
    """Three outputs with a part of their own each; one weight is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The input y is behind the last only."""
        h = torch.tanh(self.body(x))
        return self.a(h), self.b(torch.sin(self.b(h))), self.c(y)


def _pair(stages: int) -> tuple[nn.Module, ReplayModule]:
    torch.manual_seed(0)
    model = _Heads()
    plain = copy.deepcopy(model)
    captured = capture(model, _batch(), times="none")
    module = replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))
    module.__dict__["_wiring"] = Wiring(captured.program, module.plan.schedule, stages=stages)
    return plain, module


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def _calls(net: nn.Module, used: Sequence[int], *, twice: bool) -> tuple[list[Any], list[Any]]:
    """Names that hooks were called for, with what, and the gradients, in a backward."""
    seen: list[Any] = []
    batch = _batch()
    named: dict[str, Any] = {**dict(net.named_parameters()), "x": batch[0], "y": batch[1]}

    def double(name: str, gradient: torch.Tensor) -> torch.Tensor:
        seen.append((name, tuple(gradient.shape)))
        return gradient * 2

    handles = []
    for name, leaf in named.items():
        leaf.grad = None
        handles.append(leaf.register_hook(lambda g, name=name: double(name, g)))
        handles.append(
            leaf.register_post_accumulate_grad_hook(
                lambda p, name=name: seen.append((name, p.grad is None))
            )
        )
    outputs = net(*batch)
    loss: Any = torch.stack([outputs[place].square().sum() for place in used]).sum()
    if twice:
        loss.backward(retain_graph=True)
    loss.backward()
    kept = [(leaf._backward_hooks, leaf._post_accumulate_grad_hooks) for leaf in named.values()]
    for hooks in itertools.chain(*kept):
        assert [type(hook).__name__ for hook in hooks.values()] == ["function"]
    for handle in handles:
        handle.remove()
    assert not any(leaf._backward_hooks for leaf in named.values())
    return sorted(map(str, seen)), [leaf.grad for leaf in named.values()]


@pytest.mark.parametrize("stages", [1, 3])
def test_hooks_behind_unused_outputs_are_not_called(stages: int) -> None:
    """For each choice of outputs, once and twice: the same calls, gradients, and hooks after it."""
    plain, module = _pair(stages)
    for count in (1, 2, 3):
        for used in itertools.combinations(range(3), count):
            for twice in (False, True):
                calls, gradients = _calls(plain, used, twice=twice)
                found, made = _calls(module, used, twice=twice)
                assert found == calls
                for a, b in zip(gradients, made, strict=True):
                    assert a is b or torch.equal(a, b)


@pytest.mark.parametrize("stages", [1, 3])
def test_a_gradient_from_elsewhere_reaches_the_hook(stages: int) -> None:
    """A loss that uses the parameter beside the module."""
    results = []
    for net in _pair(stages):
        seen: list[torch.Tensor] = []
        weight: Any = net.get_parameter("c.weight")
        weight.register_hook(lambda g, seen=seen: seen.append(g.clone()))
        (net(*_batch())[0].sum() + weight.square().sum()).backward()
        (gradient,) = seen
        results.append((gradient, weight.grad))
    (a, b), (c, d) = results
    assert torch.equal(a, c)
    assert b is not None
    assert d is not None
    assert torch.equal(b, d)


@pytest.mark.parametrize("stages", [1, 3])
def test_leaves_further_up_are_passed_over_too(stages: int) -> None:
    """Of what an input behind the unused output was made of, outside of the module."""
    for net in _pair(stages):
        seen: list[Any] = []
        batch: Any = _batch()
        x, y = batch
        y.register_hook(seen.append)
        y.register_post_accumulate_grad_hook(seen.append)
        y.grad = torch.ones_like(y)  # of an earlier step, which a hook would take for this one's
        net(x, torch.exp(y * 2))[1].sum().backward()
        assert seen == []
