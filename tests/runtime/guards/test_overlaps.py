"""Arguments that share memory with what the step changes in place are refused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError
from lowtide.solver.schedule import Schedule

from ...plans import recomputing
from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("one_thread")


class Writes(nn.Module):
    """A step that moves a buffer, and doubles its first argument before it reads the second."""

    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("state", torch.ones(3, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Writes, then reads."""
        x.mul_(2)
        self.state.add_(1)
        return self.layer(x) * y


OVERLAPS: dict[str, tuple[Any, str]] = {
    "twice": (lambda _, x: (x, x), "argument 0 shares memory with positional argument 1"),
    "views": (lambda _, x: (x[:], x.view(4, 3).view(3, 4)), "argument 0 shares memory with"),
    "halves": (lambda _, x: x.new_ones(6, 4).chunk(2), "argument 0 shares memory with"),
    "buffer": (lambda m, x: (x, m.state), "argument 1 shares memory with the buffer state"),
    "in the buffer": (lambda m, x: (m.state[:], x), "argument 0 shares memory with the buffer"),
    "weight": (lambda m, x: (m.layer.weight.data[:3], x), "with the param layer.weight"),
}


@pytest.mark.parametrize("what", list(OVERLAPS))
def test_shared_memory_is_refused(what: str) -> None:
    """One line says what shares memory with what; tensors apart are replayed before and after."""
    torch.manual_seed(0)
    model = Writes()
    captured = capture(model, (torch.ones(3, 4), torch.ones(3, 4)), square, times="none")
    keep = Schedule.keep_everything(captured.graph)
    module = replay(captured, plan_of(captured.graph, keep))
    module(torch.ones(3, 4), torch.ones(3, 4))
    make, message = OVERLAPS[what]
    with pytest.raises(ReplayError, match=message):
        module(*make(model, torch.ones(3, 4)))
    module(torch.ones(3, 4), torch.ones(3, 4))


def test_fit_plans_one_tensor_and_refuses_parts() -> None:
    """One tensor in two places is a call of its own; for others that share memory is no plan."""
    torch.manual_seed(0)
    model = Writes()
    plain = copy.deepcopy(model)
    module = fit(
        model, (torch.ones(3, 4), torch.ones(3, 4)), memory_budget="100%", loss_fn=square,
        times="roofline",
    )  # fmt: skip
    x = torch.randn(3, 4)
    with pytest.raises(CaptureError, match="shares memory with"):
        module(x, x[:])
    for _ in range(2):
        one, other = x.clone(), x.clone()
        expected, found = square(plain(one, one)), module(other, other)
        assert torch.equal(expected, found)
        assert torch.equal(one, other)
        assert torch.equal(plain.state, model.state)


def test_what_is_only_read_may_share_memory() -> None:
    """One tensor given twice is fine where nothing is written."""
    torch.manual_seed(0)
    model = nn.Bilinear(4, 4, 2)
    captured = capture(model, (torch.ones(3, 4), torch.ones(3, 4)), square, times="none")
    keep = Schedule.keep_everything(captured.graph)
    x = torch.randn(3, 4)
    assert torch.equal(replay(captured, plan_of(captured.graph, keep))(x, x), square(model(x, x)))


def _mean(at: Callable[[Any], torch.Tensor]) -> Callable[[Any], None]:
    def put(model: Any) -> None:
        model[1].running_mean = at(model)

    return put


def _moved(model: Any) -> None:
    model[1].running_var.data = model[1].weight.data


MOVED: dict[str, tuple[Callable[[Any], None], str]] = {
    "bias": (_mean(lambda m: m[0].bias.detach()), r"buffer 1\.running_mean .* the param 0\.bias"),
    "part of a weight": (
        _mean(lambda m: m[0].weight.detach()[2]),
        r"buffer 1\.running_mean .* the param 0\.weight",
    ),
    "data": (_moved, r"buffer 1\.running_var shares memory with the param 1\.weight"),
    "another buffer": (
        _mean(lambda m: m[1].running_var),
        r"shares memory with the buffer 1\.running_",
    ),
}


@pytest.mark.parametrize("what", list(MOVED))
def test_buffers_put_into_memory_of_the_model_are_refused(what: str) -> None:
    """A weight that a buffer's update changes would be read anew where an operator runs again."""
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 4))
    model: Any = net
    captured = capture(model, x, square, times="none")
    schedule = recomputing(captured.graph, len(captured.graph.ops))
    module = replay(captured, plan_of(captured.graph, schedule))
    module(x).backward()
    put, message = MOVED[what]
    put(model)
    for _ in range(2):
        with pytest.raises(ReplayError, match=message):
            module(x)
    both = torch.ones(2, 4)
    model[1].running_mean, model[1].running_var = both[0], both[1]
    model.zero_grad()
    plain: Any = copy.deepcopy(model)
    for loss in (square(plain(x)), module(x)):
        loss.backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert torch.equal(both, torch.stack([plain[1].running_mean, plain[1].running_var]))
