"""`lowtide.backend` and `lowtide.partitioner` under torch.compile."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lowtide
from experiments.pytorch.models import Cnn, Transformer
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.solver.errors import CaptureError, InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.compile.backend import Backend

pytestmark = [
    pytest.mark.usefixtures("one_thread", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),  # inductor's imports
]


def chain(width: int = 16, depth: int = 10) -> nn.Module:
    """Linear layers with tanh between them."""
    torch.manual_seed(0)
    layers = [item for _ in range(depth) for item in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


def step(call: Any, batch: torch.Tensor) -> torch.Tensor:
    """Loss of one step, after its backward."""
    loss: torch.Tensor = call(batch).pow(2).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Gradients of all parameters."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def plans_of(backend: Backend) -> list[int]:
    """How many executions of each plan are recomputations."""
    return [one.plan.schedule.recomputes() for one in backend.planned]


def eager_backend(budget: str | int, time_limit: float = 1.0) -> Backend:
    """A backend that compiles nothing."""
    return lowtide.backend(budget, time_limit=time_limit, compiler="aot_eager")


def test_peak_falls_with_the_budget_and_gradients_stay() -> None:
    """Less memory is measured under a smaller budget; loss and gradients are those of the model."""
    model, batch = chain(), torch.randn(512, 16)
    plain = copy.deepcopy(model)
    loss = step(plain, batch)
    peaks = []
    for budget in ("max", "60%"):
        torch._dynamo.reset()
        backend = eager_backend(budget)
        compiled = torch.compile(model, backend=backend)
        model.zero_grad()
        assert torch.equal(step(compiled, batch), loss)
        for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
            assert torch.equal(ours, theirs)
        model.zero_grad()
        peaks.append(measure_peak(partial(step, compiled, batch)).peak_bytes)
        (recomputes,) = plans_of(backend)
        assert (recomputes > 0) == (budget != "max")
    assert peaks[1] < 0.8 * peaks[0]


def test_graphs_without_backward_are_not_planned() -> None:
    """Inference passes through."""
    model, batch = chain(depth=1), torch.randn(4, 16)
    backend = eager_backend("60%")
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        assert torch.equal(compiled(batch), model(batch))
    assert backend.planned == []


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch's own, at a graph break
def test_each_graph_of_a_broken_model_has_its_plan() -> None:
    """A graph break makes two graphs, each within the percentage of its own peak."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = chain(depth=6), chain(depth=6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            out: torch.Tensor = self.second(x)
            return out

    model, batch = Broken(), torch.randn(256, 16)
    plain = copy.deepcopy(model)
    step(plain, batch)
    backend = eager_backend("85%", time_limit=1.0)
    step(torch.compile(model, backend=backend), batch)
    assert len(backend.planned) == 2
    assert all(one.plan.peak_bytes <= one.budget_bytes for one in backend.planned)
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        assert torch.equal(ours, theirs)


def test_a_budget_out_of_reach_names_the_smallest() -> None:
    """The error is the solver's own, in one line; who catches PyTorch's wrapper catches it, too."""
    model, batch = chain(depth=2), torch.randn(64, 16)
    compiled = torch.compile(model, backend=eager_backend(10_000))
    with pytest.raises(InfeasibleError, match="smallest budget found is") as caught:
        compiled(batch)
    shown = traceback.format_exception_only(caught.value)
    assert len(shown) == 1
    assert shown[0].startswith("lowtide.solver.errors.InfeasibleError: ")
    assert shown[0].count("\n") == 1
    assert caught.value.smallest_bytes is not None
    assert isinstance(caught.value, torch._dynamo.exc.BackendCompilerFailed)
    assert type(caught.value.inner_exception) is InfeasibleError
    frames = [Path(frame.filename).name for frame in traceback.extract_tb(caught.tb)]
    assert frames[-1] == "private.py"
    assert "convert_frame.py" not in frames


def test_symbolic_sizes_are_refused_by_name() -> None:
    """Dynamic shapes are refused, with what to do instead."""
    model, batch = chain(depth=2), torch.randn(64, 16)
    compiled = torch.compile(model, backend=eager_backend("60%"), dynamic=True)
    with pytest.raises(CaptureError, match="compile with dynamic=False"):
        compiled(batch)


def test_wrong_arguments_are_refused_at_once() -> None:
    """Budgets, methods and compilers are looked at before anything is compiled."""
    with pytest.raises(InputError, match="not an amount"):
        lowtide.backend("much")
    with pytest.raises(InputError, match="no method"):
        lowtide.partitioner("60%", method="magic")
    with pytest.raises(InputError, match="time_limit"):
        lowtide.partitioner("60%", time_limit=0)
    with pytest.raises(InputError, match="choose inductor or aot_eager"):
        lowtide.backend("60%", compiler="gcc")  # type: ignore[arg-type]


def test_a_partitioner_is_in_force_inside_its_context_only() -> None:
    """Inductor's configuration is set and put back; the key names settings and code."""
    from torch._inductor import config

    chosen = lowtide.partitioner("60%")
    outside = pickle.dumps(chosen)
    with chosen as active:
        assert active is chosen
        assert config.custom_partitioner_fn is chosen
        assert pickle.dumps(chosen) == outside
        assert config.get_config_copy()["custom_partitioner_fn"] is chosen
    assert config.custom_partitioner_fn is None
    assert chosen.uuid() == lowtide.partitioner("60%").uuid()
    assert chosen.uuid() != lowtide.partitioner("50%").uuid()


class MeanSquare(nn.Module):
    """The loss within what is compiled: nothing of the step is outside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        out: torch.Tensor = self.inner(x)
        return out.pow(2).mean()


def backward(call: Any, batch: torch.Tensor) -> None:
    """One step of a module that gives its loss."""
    call(batch).backward()


def chain_step() -> tuple[nn.Module, torch.Tensor]:
    """Linear layers, large batch."""
    return MeanSquare(chain(width=64)), torch.randn(512, 64)


def convolutions_step() -> tuple[nn.Module, torch.Tensor]:
    """Convolutions, whose inputs inductor copies to channels last, with batch norm."""
    torch.manual_seed(0)
    layers = []
    for width in (3, 8, 8, 8):
        layers += [nn.Conv2d(width, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return MeanSquare(nn.Sequential(*layers)), torch.randn(4, 3, 24, 24)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [chain_step, convolutions_step])
def test_inductor_meets_the_budget(
    make: Callable[[], tuple[nn.Module, torch.Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    """Compiled, the peak is the one that was followed, and within the budget; gradients agree."""
    model, batch = make()
    plain = copy.deepcopy(model)
    backward(plain, batch)
    peaks = []
    for budget in ("max", "65%"):
        torch._dynamo.reset()
        backend = lowtide.backend(budget, time_limit=5.0)
        twin = copy.deepcopy(model)
        compiled = torch.compile(twin, backend=backend)
        with caplog.at_level(logging.INFO, "lowtide"):
            backward(compiled, batch)
        for ours, theirs in zip(gradients(twin), gradients(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        twin.zero_grad()
        measured = measure_peak(partial(backward, compiled, batch)).peak_bytes
        (planned,) = backend.planned
        assert planned.peak_bytes is not None, caplog.text
        assert measured == planned.peak_bytes - planned.resident_bytes
        assert budget == "max" or planned.peak_bytes <= planned.budget_bytes
        peaks.append(measured)
    assert peaks[1] < 0.8 * peaks[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_partitioner_meets_the_budget_inside_its_context() -> None:
    """Stock inductor is followed, too, also for a model that was wrapped inside."""
    model, batch = chain_step()
    with lowtide.partitioner("65%", time_limit=5.0) as chosen:
        compiled = torch.compile(model)
        backward(compiled, batch)
    (planned,) = chosen.planned
    assert planned.peak_bytes is not None
    assert planned.peak_bytes <= planned.budget_bytes
    model.zero_grad()
    measured = measure_peak(partial(backward, compiled, batch)).peak_bytes
    assert measured == planned.peak_bytes - planned.resident_bytes


def transformer_step() -> tuple[nn.Module, torch.Tensor]:
    """A small GPT with its loss."""
    torch.manual_seed(0)
    return Transformer(1, 64, 64, first=True), torch.randint(0, 64, (4, 64))


def network_step() -> tuple[nn.Module, torch.Tensor]:
    """A small convolutional network with its loss."""
    torch.manual_seed(0)
    return Cnn(8, 4), torch.randn(4, 3, 24, 24)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [chain_step, transformer_step, network_step])
def test_the_measured_peak_never_rises_as_the_budget_falls(
    make: Callable[[], tuple[nn.Module, torch.Tensor]],
) -> None:
    """Budgets close to each other, the smallest first: peaks in the order of the budgets."""
    model, batch = make()
    peaks = []
    for share in (75.0, 75.2, 75.4, 76.0, 78.0, 82.0, 90.0, 97.0):
        torch._dynamo.reset()
        backend = lowtide.backend(f"{share}%")
        twin = copy.deepcopy(model)
        compiled = torch.compile(twin, backend=backend)
        backward(compiled, batch)
        twin.zero_grad()
        peaks.append(measure_peak(partial(backward, compiled, batch)).peak_bytes)
        (planned,) = backend.planned
        assert planned.peak_bytes is not None
        assert peaks[-1] == planned.peak_bytes - planned.resident_bytes
        assert planned.peak_bytes <= planned.budget_bytes
    assert peaks == sorted(peaks)
    assert len(set(peaks)) > 1
