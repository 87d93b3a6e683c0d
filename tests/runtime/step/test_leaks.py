"""Nothing leaks: whatever happens to a step, its memory is back without the garbage collector."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.module import ReplayModule
from lowtide.runtime.replay import replay
from lowtide.runtime.wiring import Wiring
from lowtide.solver.errors import ReplayError

from ...plans import recomputing
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("one_thread", "no_collector")


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Cycles would stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class _Net(nn.Module):
    """Dropout, batch norm, outputs that backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.norm, self.drop = nn.BatchNorm1d(32), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> Any:
        """Three outputs."""
        h = self.drop(torch.tanh(self.norm(self.a(x))))
        h = torch.sigmoid(self.b(h)) + h
        out = torch.tanh(self.c(h))
        return out, h.exp(), h.sum(0)


def _module(stages: int | None = None) -> tuple[ReplayModule, torch.Tensor]:
    torch.manual_seed(0)
    model, x = _Net(), torch.randn(8, 16)
    captured = lowtide.capture(model, x, times="none")
    plan = plan_of(captured.graph, recomputing(captured.graph), budget_bytes=2**40)
    module = replay(captured, plan)
    if stages is not None:
        wiring = Wiring(captured.program, plan.schedule, stages=stages)
        module = ReplayModule(captured, plan, wiring)
    # The first call makes what stays: gradients, and generators of libraries.
    _loss(module(x)).backward()
    return module, x


def _loss(outputs: Any) -> Any:
    return outputs[0].square().sum() + outputs[1].sum() + outputs[2].sum()


def _left(fn: Callable[[], Any]) -> int:
    """Bytes that a call leaves."""
    reading = measure_peak(fn, collect=False)
    assert reading.result is None
    return reading.end_bytes


_STAGES = pytest.mark.parametrize("stages", [1, 7])


@_STAGES
def test_whole_steps(stages: int) -> None:
    """After ten steps there is what was there before."""
    module, x = _module(stages)

    def run() -> None:
        for _ in range(10):
            _loss(module(x)).backward()

    assert _left(run) == 0


@_STAGES
def test_gradients_are_all_that_stays(stages: int) -> None:
    """A step without gradients at the start leaves them, and nothing else."""
    module, x = _module(stages)
    module.zero_grad()
    expected = sum(p.nbytes for p in module.parameters())
    assert _left(lambda: _loss(module(x)).backward()) == expected


@_STAGES
def test_forward_without_backward(stages: int) -> None:
    """Outputs that are dropped take their history along; each of them alone holds it."""
    module, x = _module(stages)

    def run() -> None:
        for keep in range(3):
            outputs = module(x)
            kept = outputs[keep]
            del outputs
            del kept

    assert _left(run) == 0


def test_plain_calls() -> None:
    """Calls without gradients, and in eval mode with and without backward."""
    module, x = _module()

    def run() -> None:
        with torch.no_grad():
            module(x)
        with torch.inference_mode():
            module(x)
        module.eval()
        module(x)
        _loss(module(x)).backward()
        module.train()
        _loss(module(x)).backward()

    assert _left(run) == 0


def test_a_refused_call() -> None:
    """A call that the guards refuse leaves nothing, and the next one works."""
    module, x = _module()

    def run() -> None:
        with pytest.raises(ReplayError):
            module(x[:3])
        _loss(module(x)).backward()

    run()
    assert _left(run) == 0


def test_an_exception_in_forward() -> None:
    """An operator that raises in the middle of forward."""

    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.a = nn.Embedding(4, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> Any:
            return (self.embed(rows) * torch.tanh(self.a(x))).sum()

    x, rows = torch.randn(3, 8), torch.tensor([0, 1, 2])
    captured = lowtide.capture(Checked(), (x, rows), times="none")
    keep = lowtide.Schedule.keep_everything(captured.graph)
    module = replay(captured, plan_of(captured.graph, keep, budget_bytes=2**40))
    module(x, rows).backward()

    def run() -> None:
        for _ in range(3):
            with pytest.raises(IndexError):
                module(x, rows + 2)
        module(x, rows).backward()

    run()
    assert _left(run) == 0


@_STAGES
@pytest.mark.parametrize("which", [0, -1])
def test_an_exception_in_a_hook(stages: int, which: int) -> None:
    """A gradient hook of the last or the first parameter raises in the middle of backward."""
    module, x = _module(stages)

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("no")

    def run() -> None:
        parameter: Any = list(module.parameters())[which]
        handle = parameter.register_hook(fail)
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                _loss(module(x)).backward()
        handle.remove()
        _loss(module(x)).backward()

    run()
    assert _left(run) == 0


@_STAGES
def test_a_retained_graph_and_its_release(stages: int) -> None:
    """Two backwards over one forward; a graph that is retained and dropped."""
    module, x = _module(stages)

    def run() -> None:
        loss = _loss(module(x))
        loss.backward(retain_graph=True)
        loss.backward()
        again = _loss(module(x))
        again.backward(retain_graph=True)
        del again
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    run()
    assert _left(run) == 0


@_STAGES
def test_backward_for_some(stages: int) -> None:
    """`autograd.grad` for the last or the first parameter only, of one of the outputs."""
    module, x = _module(stages)

    def run() -> None:
        for pick in (slice(-1, None), slice(0, 1)):
            for output in (0, 2):
                value = module(x)[output].sum()
                torch.autograd.grad(value, list(module.parameters())[pick], allow_unused=True)

    assert _left(run) == 0


@_STAGES
def test_memory_is_back_before_outputs_go(stages: int) -> None:
    """While the caller still holds the outputs, backward has left nothing but them."""
    module, x = _module(stages)
    held: list[Any] = []

    def run() -> None:
        held.append(module(x))
        _loss(held[0]).backward()

    assert _left(run) == sum(out.nbytes for out in held[0])
    held.clear()


def test_modules_go_with_their_last_reference() -> None:
    """Dropping a module drops its parameters: none of our caches holds on to it."""

    def run() -> None:
        module, x = _module()
        _loss(module(x)).backward()
        del module
        gc.collect()  # modules and captured steps refer to each other

    run()
    assert _left(run) == 0
