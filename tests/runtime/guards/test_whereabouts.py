"""Memory that is exchanged between forward and backward is refused, in place changes seen."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.guards.whereabouts import Whereabouts
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ...plans import recomputing
from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")


class _Net(nn.Module):
    """Autograd saves a view of a weight, a parameter itself, a buffer and the input."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4,), 1.5))
        self.register_buffer("shift", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each of them is read by backward."""
        return torch.tanh(self.linear(torch.sin(x * self.scale) * self.shift) * self.scale)


def _batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def _made(again: bool) -> tuple[nn.Module, ReplayModule]:
    torch.manual_seed(0)
    net = _Net()
    captured = capture(net, _batch(), square, times="none")
    graph = captured.graph
    schedule = recomputing(graph, 100) if again else Schedule.keep_everything(graph)
    return copy.deepcopy(net), replay(captured, plan_of(graph, schedule))


def _other(tensor: torch.Tensor) -> None:
    tensor.data = torch.full_like(tensor, 3.0)


_TENSORS: dict[str, Callable[[Any], torch.Tensor]] = {
    r"linear\.weight": lambda net: net.linear.weight,
    "scale": lambda net: net.scale,
    "shift": lambda net: net.shift,
}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", _TENSORS)
def test_other_memory_between_forward_and_backward_is_refused(name: str, again: bool) -> None:
    """By name; before forward, and after backward, it is welcome."""
    _, module = _made(again)
    module(_batch()).backward()
    _other(_TENSORS[name](module))
    loss = module(_batch())
    loss.backward()
    loss = module(_batch())
    _other(_TENSORS[name](module))
    with pytest.raises(ReplayError, match=rf"^{name} was given other memory \(\.data = "):
        loss.backward()


def test_other_memory_of_an_input_is_refused() -> None:
    """What a call brings with it lies elsewhere in each, and stays there until backward."""
    _, module = _made(again=True)
    for _ in range(2):
        module(_batch()).backward()
    batch = _batch()
    loss = module(batch)
    _other(batch)
    with pytest.raises(ReplayError, match=r"^input 0 was given other memory"):
        loss.backward()


@pytest.mark.parametrize("name", _TENSORS)
def test_changes_in_place_through_data_are_seen_as_in_plain_pytorch(name: str) -> None:
    """Where nothing runs again: backward reads the same memory."""
    plain, module = _made(again=False)
    for net, loss in ((plain, square(plain(_batch()))), (module, module(_batch()))):
        _TENSORS[name](net).data.add_(1.0)
        loss.backward()
    pairs = zip(plain.parameters(), module.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]


def test_a_storage_that_is_filled_again_elsewhere_has_not_moved() -> None:
    """FSDP empties those of gathered parameters after forward."""
    held, given = torch.ones(1000), torch.ones(1000)
    known = Whereabouts(held=1)
    before = known.now([held, given])
    assert known.now([held, given]) == before
    assert known.moved([held, given], before) == -1
    held.untyped_storage().resize_(0)
    between = torch.empty(1000)  # takes the place
    held.untyped_storage().resize_(1 << 20)
    assert held.data_ptr() not in (before[0], between.data_ptr())
    assert known.moved([held, given], before) == -1
    given.untyped_storage().resize_(1 << 20)
    held.data = torch.ones(1000)
    assert known.moved([held, given], before) == 0
