"""Tensors made in inference mode, which have no version, are refused by name before the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError
from lowtide.solver.schedule import Schedule

from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")
_WORDS = r"is an inference tensor \(made under torch.inference_mode\(\)\).*: use its clone\(\)"


class _Net(nn.Module):
    """A parameter, a buffer that the step updates, and a tensor in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.scale = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Uses all of them."""
        return torch.tanh(self.norm(self.linear(x)) * self.scale)


def _replayed() -> ReplayModule:
    torch.manual_seed(0)
    captured = capture(_Net(), _batch(), square)
    return replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


def _batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def _weight(net: Any) -> None:
    net.linear.weight = nn.Parameter(torch.ones(4, 4))


def _buffer(net: Any) -> None:
    net.norm.running_mean = torch.zeros(4)


def _attribute(net: Any) -> None:
    net.scale = torch.ones(4)


_CHANGES: dict[str, Callable[[Any], None]] = {
    r"linear\.weight": _weight,
    r"norm\.running_mean": _buffer,
    "scale": _attribute,
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_tensor_of_the_module_is_refused_by_name(name: str) -> None:
    """By replay before anything is updated, and by capture."""
    module, net = _replayed(), _Net()
    module(_batch()).backward()  # what is looked at first, and what is remembered of it
    module(_batch())
    before = module.norm.num_batches_tracked.clone()
    for found in (module.captured.model, net):
        with torch.inference_mode():
            _CHANGES[name](found)
    with pytest.raises(ReplayError, match=f"{name} {_WORDS}"):
        module(_batch())
    assert torch.equal(module.norm.num_batches_tracked, before)
    with pytest.raises(CaptureError, match=_WORDS):
        capture(net, _batch(), square)


def test_an_argument_is_refused_by_name() -> None:
    """Its clone is taken."""
    module = _replayed()
    with torch.inference_mode():
        batch = _batch()
    with pytest.raises(ReplayError, match=f"argument 0 {_WORDS}"):
        module(batch)
    with pytest.raises(CaptureError, match=f"input 0 {_WORDS}"):
        fit(_Net(), batch, memory_budget="100%", loss_fn=square)
    module(batch.clone()).backward()


def test_a_closed_over_tensor_is_refused() -> None:
    """One that the loss closes over."""
    with torch.inference_mode():
        weight = torch.ones(4)
    with pytest.raises(CaptureError, match=_WORDS):
        capture(_Net(), _batch(), lambda out: (out * weight).sum())
