"""Outputs that the caller's loss does not use: backward does without them, as plain PyTorch's."""

from __future__ import annotations

import copy
import itertools
import random
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.runtime.wiring import Wiring
from lowtide.solver.schedule import Schedule

from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("one_thread")


class Roots(nn.Module):
    """Derivatives that are infinite where the weight is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
        self.other = nn.Parameter(torch.tensor([0.0, -1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Four results of shape (3,), (3,), (3,) and (1,)."""
        y = self.weight * x
        z = y * self.other.abs()
        return y * 2, y.sqrt(), z.abs().log(), z.norm().reshape(1)


class Norms(nn.Module):
    """A gradient that is expanded if it comes alone, and dense in a sum with another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Results of shape (n, 8), (8,), (n, 4) and two of (n, 4)."""
        h = self.norm(self.first(x))
        left, right = torch.cat([h.exp(), h.sin()], 1).chunk(2, 1)
        return h.tanh(), h.sum(0), self.last(h), (left * h)[:, :4], right.relu()


def _gradients(
    net: nn.Module, x: torch.Tensor, picked: Sequence[int], *, retain: bool
) -> list[torch.Tensor | None]:
    """Of all parameters and the input after one backward, or two."""
    x = x.clone().requires_grad_()
    net.zero_grad()
    outputs = net(x)
    loss = torch.stack([outputs[place].sum() for place in picked]).sum()
    if retain:
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    return [x.grad, *(parameter.grad for parameter in net.parameters())]


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["roots", "norms"])
def test_as_in_the_plain_step(name: str, recompute: bool, stages: int) -> None:
    """Bits, infinities and None for every choice of outputs, by one module."""
    torch.manual_seed(0)
    model: nn.Module = Roots() if name == "roots" else Norms()
    x = torch.ones(3) if name == "roots" else torch.randn(5, 6)
    plain = copy.deepcopy(model)
    captured = capture(model, x.clone().requires_grad_())
    graph = captured.graph
    schedule = Schedule.keep_everything(graph)
    if recompute:
        schedule = random_schedule(graph, random.Random(3), drop=0.5)
        assert len(schedule.computes()) > len(graph.ops)
    module = replay(captured, plan_of(graph, schedule))
    module.__dict__["_wiring"] = Wiring(captured.program, module.plan.schedule, stages=stages)
    count = 4 if name == "roots" else 5
    choices = [c for k in range(1, count + 1) for c in itertools.combinations(range(count), k)]
    for choice in choices:
        for retain in (False, True):
            expected = _gradients(plain, x, choice, retain=retain)
            found = _gradients(module, x, choice, retain=retain)
            for a, b in zip(expected, found, strict=True):
                assert (a is None) == (b is None), choice
                if a is not None and b is not None:
                    assert torch.equal(a.isnan(), b.isnan()), choice
                    assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)), choice
