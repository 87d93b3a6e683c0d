"""Random state around recomputation."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.generators import random_states, set_random_states, state_functions
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule

from ..models import square
from ..schedules import plan_of, random_schedule

pytestmark = pytest.mark.usefixtures("one_thread")


def test_states_take_the_bytes_that_are_counted() -> None:
    """Reading a CPU state allocates 5056 bytes; setting one allocates nothing."""
    get_state, set_state = state_functions(torch.device("cpu"))
    state = get_state()
    assert state.untyped_storage().nbytes() == 5056
    assert measure_peak(get_state).peak_bytes == 5056
    assert measure_peak(lambda: set_state(state)).peak_bytes == 0


def test_states_are_restored() -> None:
    """What was drawn in between is drawn again."""
    states = random_states()
    first = torch.rand(3)
    set_random_states(states)
    assert torch.equal(first, torch.rand(3))


def _gradient(net: nn.Module) -> torch.Tensor:
    gradient = next(net.parameters()).grad
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("seed", range(3))
def test_recomputed_masks_are_the_first_ones(seed: int) -> None:
    """The gradient belongs to the mask that made the loss, and the generator ends as it should."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5))
    captured = capture(net, torch.ones(4, 8), square)
    schedule = random_schedule(captured.graph, random.Random(seed), drop=0.9)
    module = replay(captured, plan_of(captured.graph, schedule))
    assert " again" in module.code
    found = []
    for run in (lambda x: square(net(x)), module):
        torch.manual_seed(11)
        net.zero_grad()
        run(torch.ones(4, 8)).backward()
        found.append((_gradient(net), torch.get_rng_state()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_recomputed_masks_on_cuda() -> None:
    """The same on CUDA, whose generator is another one."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5)).cuda()
    x = torch.ones(4, 8, device="cuda")
    captured = capture(net, x, square)
    schedule = random_schedule(captured.graph, random.Random(1), drop=0.9)
    module = replay(captured, plan_of(captured.graph, schedule))
    found = []
    for run in (lambda x: square(net(x)), module):
        torch.manual_seed(11)
        net.zero_grad()
        run(x).backward()
        found.append((_gradient(net), torch.cuda.get_rng_state()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_random_ops_keep_their_order() -> None:
    """In the base order the generated code draws in the order of the model."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.25))
    captured = capture(net, torch.ones(4, 8, requires_grad=True), square)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    forward = module.code[: module.code.index("def backward")]
    assert forward.index(", 0.5, 0.5, ") < forward.index(", 0.75, 0.75, ")
