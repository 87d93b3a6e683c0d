"""Replays in one buffer: same bits, the predicted bytes, and nothing of the caller's inside."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import re
import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.runtime.step.arena import plan_arena
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..models import SMALL, TRANSFORMERS, profiled, square
from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")
_ALL = [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMERS)]


def _in_arena(captured: Captured, schedule: Schedule) -> ReplayModule:
    """The replay in an arena, with a budget that lets it."""
    room = 2 * simulate(captured.graph, schedule).peak_bytes
    return replay(captured, plan_of(captured.graph, schedule, budget_bytes=room), arena=True)


@pytest.mark.parametrize("name", _ALL)
@pytest.mark.parametrize("seed", [-1, 2])
def test_arena_is_exact(name: str, seed: int) -> None:
    """Training agrees in every bit, and the peak in every byte, with recomputation or without."""
    case, captured = profiled(name)
    schedule = Schedule.keep_everything(captured.graph)
    if seed >= 0:
        schedule = random_schedule(captured.graph, random.Random(seed), drop=0.4)
    module = _in_arena(captured, schedule)
    arena = module.arena
    assert arena is not None
    assert arena.size_bytes > 0
    assert "new_arena" in module.code
    found = verify(case.model, module, [case.batch(i) for i in range(3)], repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes
    assert found.predicted_peak_bytes == arena.peak_bytes - captured.graph.resident_bytes
    assert not any(captured.graph.tensors[t].output for t in arena.tensors)


class _Net(nn.Module):
    """Two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and something that the caller keeps."""
        hidden = torch.tanh(self.a(x))
        return square(torch.sigmoid(self.b(hidden)) + hidden), hidden


def _both() -> tuple[_Net, ReplayModule, torch.Tensor]:
    torch.manual_seed(5)
    model, x = _Net(), torch.randn(8, 16)
    captured = capture(model, x, times="none")
    return copy.deepcopy(model), _in_arena(captured, Schedule.keep_everything(captured.graph)), x


def _gradients(module: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad(set_to_none=True)
    assert len(found) == 4
    return found


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_two_steps_at_once_have_two_buffers() -> None:
    """Forwards may be open side by side, and their backwards come in any order."""
    plain, module, x = _both()
    for backwards in (0, 1):
        for run in (plain, module):
            losses = [run(x)[0], run(2 * x)[0]]
            losses[1 - backwards].backward()
            losses[backwards].backward()
        assert _same(_gradients(plain), _gradients(module))


def test_retained_graph() -> None:
    """A second backward finds what forward left, whatever the first one put in its place."""
    plain, module, x = _both()
    for run in (plain, module):
        loss = run(x)[0]
        for turn in range(3):
            loss.backward(retain_graph=turn < 2)
    assert _same(_gradients(plain), _gradients(module))


def test_what_the_caller_keeps_is_not_in_the_buffer() -> None:
    """Outputs and gradients have memory of their own; the buffer goes with the backward."""
    plain, module, x = _both()
    loss, hidden = module(x)
    before = hidden.detach().clone()
    size = module._wiring.arena.size_bytes
    loss.backward()
    kept = [hidden, loss, *(p.grad for p in module.parameters())]
    assert all(t.untyped_storage().nbytes() != size for t in kept)
    assert torch.equal(hidden, before)
    assert torch.equal(hidden, plain(x)[1])


def test_buffer_is_freed_without_backward() -> None:
    """Dropping the outputs of a forward frees its buffer, without the garbage collector."""
    _, module, x = _both()
    loss, hidden = module(x)
    run = loss.grad_fn.run
    watch = weakref.ref(run.saved[-1])
    assert run.saved[-1].nbytes == module._wiring.arena.size_bytes
    gc.disable()
    try:
        del run, loss, hidden
        assert watch() is None
    finally:
        gc.enable()


class _Strided(nn.Module):
    """Reads memory by offsets into the storage."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        first = self.a(x) * 2
        hidden = torch.tanh(self.a(first))
        part = hidden.as_strided((4, 4), (16, 1), 20)
        return square(part + first[:4, :4])


def test_offsets_into_a_storage_stay_right() -> None:
    """What `as_strided` looks at keeps a storage of its own."""
    torch.manual_seed(5)
    model, x = _Strided(), torch.randn(8, 16)
    captured = capture(model, x, times="none")
    module = _in_arena(captured, Schedule.keep_everything(captured.graph))
    assert re.search(r"as_strided\w*\(v", module.code)
    found = verify(model, module, [x], repeats=1)
    assert found.ok, found.first_difference


def test_masks_and_pools_lie_in_the_buffer() -> None:
    """Draws, their reruns, and backwards of pooling write where they are told to."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.4), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1),
        nn.AvgPool2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(16, 8), nn.LogSoftmax(1),
    )  # fmt: skip
    x, loss = torch.randn(5, 3, 8, 8), nn.NLLLoss()
    captured = capture(model, x, lambda out: loss(out, torch.arange(5)))
    schedule = random_schedule(captured.graph, random.Random(1), drop=1.0)
    module = _in_arena(captured, schedule)
    found = verify(model, module, [x, x + 1], repeats=1)
    assert found.ok, found.first_difference
    draws = [line for line in module.code.splitlines() if "bernoulli(" in line]
    assert all("out=as_strided(arena" in line for line in draws)
    assert any("again" in line for line in draws)
    assert module.arena is not None
    outside = module.arena.outside
    assert "aten.convolution.default" in outside  # it would copy
    for inside in ("bernoulli", "avg_pool2d", "max_pool2d_with_indices_backward", "nll_loss_back"):
        assert not any(inside in kind for kind in outside), outside


def test_above_the_budget_is_refused() -> None:
    """The buffer is held to the end: where that breaks the budget, the numbers are said."""
    torch.manual_seed(0)
    captured = capture(_Net(), torch.randn(8, 16), times="none")
    schedule = Schedule.keep_everything(captured.graph)
    peak = simulate(captured.graph, schedule).peak_bytes
    plan = plan_of(captured.graph, schedule, budget_bytes=peak)
    arena = plan_arena(captured.program, schedule, captured.device)
    assert arena.peak_bytes > plan.budget_bytes
    with pytest.raises(ReplayError, match=rf"{arena.peak_bytes} B\), above the budget of"):
        replay(captured, plan, arena=True)
    replay(captured, plan)


def test_copies_and_pickles_keep_the_arena() -> None:
    """A pickled replay is again one in an arena, of the same length."""
    plain, module, x = _both()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin._wiring.arena.size_bytes == module._wiring.arena.size_bytes
        for run in (plain, twin):
            run(x)[0].backward()
        assert _same(_gradients(plain), _gradients(twin))


def test_steps_that_add_to_gradients() -> None:
    """Gradients that are handed over have memory of their own, whether earlier ones are there."""
    torch.manual_seed(5)
    model, x = _Net(), torch.randn(8, 16)
    plain = copy.deepcopy(model)
    captured = capture(model, x, times="none").accumulating()
    module = _in_arena(captured, Schedule.keep_everything(captured.graph))
    size = module._wiring.arena.size_bytes
    for run in (plain, module):
        for factor in (1, 2, 3):
            run(factor * x)[0].backward()
    kept = [p.grad for p in module.parameters() if p.grad is not None]
    assert all(gradient.untyped_storage().nbytes() != size for gradient in kept)
    assert _same(_gradients(plain), _gradients(module))


def test_an_arena_may_take_more_than_the_plan_was_made_for() -> None:
    """Only if it is told so; and what it is told to be enough, is enough."""
    captured = capture(_Net(), torch.randn(8, 16), times="none")
    schedule = Schedule.keep_everything(captured.graph)
    peak = simulate(captured.graph, schedule).peak_bytes
    plan = plan_of(captured.graph, schedule, budget_bytes=peak)
    with pytest.raises(ReplayError, match=r"pass budget=(\d+)") as caught:
        replay(captured, plan, arena=True)
    enough = int(re.findall(r"budget=(\d+)", str(caught.value))[0])
    assert replay(captured, plan, arena=True, budget=enough).peak_bytes == enough
    assert replay(captured, plan, arena=True, budget="300%").peak_bytes == enough
    with pytest.raises(ReplayError, match="with the arena"):
        replay(captured, plan, arena=True, budget=enough - 1)
    with pytest.raises(ReplayError, match="solve again"):
        replay(captured, plan, budget=plan.peak_bytes - 1)
