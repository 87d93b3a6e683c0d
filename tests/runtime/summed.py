"""Models and losses in which gradients are sums, and what there is to compare."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule

from .schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.module import ReplayModule

WIDTH = 32


class Tied(nn.Module):
    """A table that is the last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lin = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        """Scores of all rows of the table."""
        h = self.table(torch.arange(x.shape[0]) * 3) * x
        return torch.tanh(self.lin(h)) @ self.table.weight.t()


class Shared(nn.Module):
    """A layer, a scale and an input that are used again and again, and one transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

    def forward(self, x: torch.Tensor) -> Any:
        """Residual, so that sums are passed on from one tensor to the next."""
        h = x + self.lin(x).tanh()
        h = h + self.lin(h * self.scale).tanh()
        turned = self.weight.t()
        h = h + h @ turned + (h @ turned).sin() @ self.weight
        return h + self.lin(h) * x * self.scale


class Passed(nn.Module):
    """Tensors that are only added to something, which then has uses of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(7, WIDTH))
        self.second = nn.Parameter(torch.randn(7, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        """The sum of the uses of `y` is the first part of the sums for `x` and `first`."""
        y = x + self.first
        z = y.sin() * y + y.tanh().exp()
        both = self.first * self.second + self.second.sin() + self.second.cos() * x
        return z + both + x.tanh() + x


class Loop(nn.Module):
    """The same weights in each of some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.old, self.new = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        """Four steps on one input."""
        h = x
        for _ in range(4):
            h = torch.tanh(self.old(h) + self.new(x))
        return h


class Narrow(nn.Module):
    """Weights whose casts autocast keeps: their gradients are added up in the narrow type."""

    def __init__(self) -> None:
        super().__init__()
        self.old, self.new = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        """Layers used twice, and a weight once more in its own type."""
        with torch.autocast("cpu", torch.bfloat16):
            h = self.old(self.old(x).tanh()) + self.new(x.to(torch.bfloat16))
            h = self.new(h) * self.old.weight[0]
        return h.float() + x


def decay(net: Any) -> Any:
    """A loss of all parameters."""
    return sum(p.square().sin().sum() for p in net.parameters()) * 0.1


def around(net: Any, x: Any, y: Any) -> Any:
    """Losses before, beside and after the module."""
    before = decay(net)
    middle = net(x) + x.sin() + x.cos()
    return (net(middle) * middle + x * y).square().mean() + before + decay(net)


LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "alone": lambda net, x, _: net(x).square().mean(),
    "decay last": lambda net, x, _: net(x).square().mean() + decay(net),
    "decay first": lambda net, x, _: decay(net) + net(x).square().mean(),
    "skip": lambda net, x, _: (x + net(x)).square().mean(),
    "two skips": lambda net, x, _: (x.sin() * net(x)).square().mean() + x.exp().mean(),
    "skip before": lambda net, x, _: (x.sin() * net(x)).square().mean(),
    "two calls": lambda net, x, y: net(x).square().mean() + net(y).sin().mean(),
    "one on the other": lambda net, x, _: net(net(x) + x).square().mean(),
    "all": around,
}


def gradients(net: Any, loss: Callable[[Any, Any, Any], Any], how: str) -> list[Any]:
    """Of inputs and parameters; inputs have a history, as within a larger model."""
    net.zero_grad()
    generator = torch.Generator().manual_seed(5)
    leaves = [torch.randn(7, WIDTH, generator=generator).requires_grad_() for _ in range(2)]

    def run() -> tuple[list[torch.Tensor], Any]:
        inputs = [leaf * 1.5 for leaf in leaves]
        for tensor in inputs:
            tensor.retain_grad()
        return inputs, loss(net, *inputs)

    inputs, value = run()
    if how == "of one weight":
        return list(torch.autograd.grad(value, [next(net.parameters())]))
    if how == "of inputs":
        return list(torch.autograd.grad(value, [leaves[0], inputs[0]]))
    value.backward(retain_graph=how == "retained")
    if how == "retained":
        value.backward()
    if how == "accumulated":
        run()[1].backward()
    return [t.grad for t in (*inputs, *leaves, *net.parameters())]


def captured_of(kind: type[nn.Module]) -> tuple[nn.Module, Captured]:
    """A model, and the captured step of another with the same weights."""
    torch.manual_seed(0)
    model = kind()
    captured = capture(model, torch.randn(7, WIDTH).requires_grad_())
    return copy.deepcopy(model), captured


def replayed(
    captured: Captured, schedule: Schedule | None = None, *, arena: bool = False
) -> ReplayModule:
    """By a schedule, or one that keeps everything."""
    kept = Schedule.keep_everything(captured.graph)
    plan = plan_of(captured.graph, schedule or kept, budget_bytes=2**40)
    return replay(captured, plan, arena=arena)
