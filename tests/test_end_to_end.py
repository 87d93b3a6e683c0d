"""From model to training step under a budget: seven models, bits and bytes exact."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

import lowtide
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.costs.profile import profile
from lowtide.solver.errors import NoPlanError
from lowtide.solver.smallest import smallest_budget

from .models import ZOO, Case, make

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.runtime.module import ReplayModule

BUDGETS = ("80%", "60%", "40%", "0.8 peak", "0.6 peak", "0.4 peak")
_FAST = "60%"


@pytest.fixture(scope="module", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One thread, and profiles of this run only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(before)


@functools.cache
def profiled(name: str) -> tuple[Case, lowtide.Captured]:
    """A case of the zoo and its measured step; tests leave both as they are."""
    case = make(name)
    captured = lowtide.capture(case.model, case.batch(0), case.loss_fn)
    return case, profile(captured, budget_s=10)


def budget_bytes(graph: lowtide.Graph, budget: str) -> str | int:
    """The budget as `solve` takes it: `0.6 peak` is 60% of the peak without recomputation."""
    if not budget.endswith("peak"):
        return budget
    peak = lowtide.simulate(graph, lowtide.Schedule.keep_everything(graph)).peak_bytes
    return int(float(budget.split()[0]) * peak)


def plan_within(graph: lowtide.Graph, budget: str | int, time_limit: float) -> lowtide.Plan:
    """A plan within the budget, or within the smallest one if none fits."""
    try:
        return lowtide.solve(graph, budget, time_limit=time_limit, gap=5e-3)
    except lowtide.InfeasibleError as error:
        found = error.smallest_bytes or 0
    except NoPlanError:
        found = smallest_budget(graph)
    plan = lowtide.solve(graph, found, time_limit=time_limit, gap=5e-3)
    assert plan.peak_bytes <= found
    return plan


def measured_peak(module: ReplayModule, batch: Any) -> int:
    """Bytes that a step takes beyond the resident ones; what it returns is held throughout."""
    twin = copy.deepcopy(module)

    def step() -> Any:
        out = twin(**batch) if isinstance(batch, dict) else twin(*batch)
        loss_of(out).backward()  # type: ignore[no-untyped-call]
        return out

    step()
    for parameter in twin.parameters():
        parameter.grad = None
    return measure_peak(step).peak_bytes


def loss_of(out: Any) -> torch.Tensor:
    """The loss in what a module returns."""
    loss: torch.Tensor = out if isinstance(out, torch.Tensor) else out.loss
    return loss


def trained(module: torch.nn.Module, loss_fn: Any, batches: list[Any]) -> list[torch.Tensor]:
    """Everything that AdamW steps leave: losses, gradients, state, and the generator's state."""
    torch.manual_seed(11)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    seen = []
    for batch in batches:
        out = module(**batch) if isinstance(batch, dict) else module(*batch)
        loss = loss_of(out if loss_fn is None else loss_fn(out))
        loss.backward()  # type: ignore[no-untyped-call]
        seen.append(loss.detach())
        seen += [p.grad.clone() for p in module.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        seen += [value.clone() for value in module.state_dict().values()]
    return [*seen, torch.get_rng_state()]


_LONG = ("llama", "bert")


def matrix() -> list[Any]:
    """All pairs of model and budget; one budget of each is fast."""
    return [
        pytest.param(
            name, budget, marks=() if budget == _FAST and name not in _LONG else pytest.mark.slow
        )
        for name in ZOO
        for budget in BUDGETS
    ]


@pytest.mark.parametrize(("name", "budget"), matrix())
def test_a_step_under_a_budget_is_exact(name: str, budget: str) -> None:
    """Measured peak = predicted peak <= budget; training equals the plain one in every bit."""
    case, captured = profiled(name)
    graph = captured.graph
    limit = 3.0 if budget == _FAST else 15.0
    plan = plan_within(graph, budget_bytes(graph, budget), limit)
    lowtide.check(graph, plan)
    assert plan.schedule.recomputes() > 0
    module = lowtide.replay(captured, plan)
    batches = [case.batch(seed) for seed in range(3)]
    found = lowtide.verify(case.model, module, batches, measure=False)
    assert found.ok, found.first_difference
    assert graph.resident_bytes + measured_peak(module, batches[0]) == plan.peak_bytes
    assert plan.peak_bytes <= plan.budget_bytes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "mlp" else pytest.mark.slow) for name in ZOO]
)
def test_a_step_on_existing_gradients_is_exact(name: str) -> None:
    """The same for a later micro-batch: old gradients count, new ones are added to them."""
    case, captured = profiled(name)
    captured = captured.accumulating()
    graph = captured.graph
    plan = plan_within(graph, "60%", 2.0)
    assert plan.schedule.recomputes() > 0
    module = lowtide.replay(captured, plan)
    batches = [case.batch(seed) for seed in range(3)]
    found = lowtide.verify(case.model, module, batches, optimizer=None, repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == plan.peak_bytes - plan.resident_bytes
    assert plan.resident_bytes > plan.existing_gradient_bytes == graph.existing_gradient_bytes > 0
    # Without gradients at the start it takes less, those that it makes included.
    fresh = measured_peak(module, batches[0])
    assert fresh <= found.replay_peak_bytes + plan.existing_gradient_bytes


@pytest.mark.parametrize("name", ZOO)
def test_a_plain_loop_agrees(name: str) -> None:
    """The same without `verify`: a plain loop over plain and replayed module sees equal bits."""
    case, captured = profiled(name)
    graph = captured.graph
    plan = lowtide.solve(graph, "70%", method="greedy")
    batches = [case.batch(seed) for seed in range(3)]
    plain = trained(copy.deepcopy(case.model), case.loss_fn, batches)
    replayed = trained(copy.deepcopy(lowtide.replay(captured, plan)), None, batches)
    assert len(plain) == len(replayed)
    assert all(torch.equal(a, b) for a, b in zip(plain, replayed, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_fit_in_two_lines(name: str) -> None:
    """`fit` gives a module that trains in place of the model, within the budget."""
    model, batch, loss_fn = (case := make(name)).model, case.batch(0), case.loss_fn
    module = lowtide.fit(model, batch, memory_budget="60%", loss_fn=loss_fn, time_limit=5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained(module, None, [case.batch(seed) for seed in range(2)])
    assert any(not torch.equal(before[key], value) for key, value in model.state_dict().items())
    peak = module.captured.graph.resident_bytes + measured_peak(module, batch)
    assert peak == module.plan.peak_bytes <= module.plan.budget_bytes
