"""Replays overwrite what dies, where the plan's accounting says so, and nothing else."""

from __future__ import annotations

import copy
import random
import re
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..models import square
from ..schedules import lazy_frees, plan_of

if TYPE_CHECKING:
    from lowtide.runtime.module import ReplayModule
    from lowtide.solver.graph import Graph

pytestmark = pytest.mark.usefixtures("one_thread")


class _Net(nn.Module):
    """Residual blocks whose sums, products and activations can be made in place."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        for layer in self.layers:
            x = x + torch.sigmoid(layer(x)) * 0.5
        return square(x)


def _again_late(graph: Graph) -> Schedule:
    """Activations made again in backward from what forward left, which then is overwritten."""
    boundary = graph.boundary
    order = list(range(len(graph.ops)))
    at = order.index(boundary) + 1
    again = [i for i in order[:boundary] if graph.ops[i].overwrites >= 0 and graph.ops[i].recompute]
    order[at:at] = again
    return Schedule.from_computes(graph, order)


def _grads(module: nn.Module, x: torch.Tensor, times: int) -> list[torch.Tensor]:
    loss = module(x)
    for turn in range(times):
        loss.backward(retain_graph=turn + 1 < times)
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return found


def test_retained_graph_keeps_what_backward_overwrites() -> None:
    """A second backward finds the saved values as forward left them."""
    torch.manual_seed(3)
    model, x = _Net(), torch.randn(8, 16)
    captured = capture(model, x, times="none")
    schedule = _again_late(captured.graph)
    module = replay(captured, plan_of(captured.graph, schedule))
    assert module._wiring.code.overwritten
    for times in (1, 2, 3):
        plain, replayed = _grads(copy.deepcopy(model), x, times), _grads(module, x, times)
        assert len(plain) == 6
        assert all(torch.equal(a, b) for a, b in zip(plain, replayed, strict=True))


def _taken(module: ReplayModule) -> int:
    """Calls in the code that overwrite something."""
    return len(re.findall(r"(?:out|grad_input)=v|_(?:_Tensor)?\(v", module.code))


def test_only_where_the_input_dies() -> None:
    """An input that is freed later is left alone: the same peak, counted and measured."""
    torch.manual_seed(3)
    model, x = _Net(2, 32), torch.randn(64, 32)
    captured = capture(model, x, times="none")
    graph = captured.graph
    eager_frees = Schedule.keep_everything(graph)
    module = replay(captured, plan_of(graph, eager_frees))
    assert _taken(module) == sum(op.overwrites >= 0 for op in graph.ops) > 3
    for seed in range(3):
        schedule = lazy_frees(graph, eager_frees, random.Random(seed))
        lazy = replay(captured, plan_of(graph, schedule))
        assert _taken(lazy) < _taken(module)

        def step(run: nn.Module = lazy) -> None:
            run(x).backward()

        step()
        lazy.zero_grad(set_to_none=True)
        predicted = simulate(graph, schedule).peak_bytes - graph.resident_bytes
        assert measure_peak(step).peak_bytes == predicted
        lazy.zero_grad(set_to_none=True)
