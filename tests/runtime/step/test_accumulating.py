"""Steps that add to existing gradients: predicted and measured peak agree in every byte."""

from __future__ import annotations

import copy
import random
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch import nn

import lowtide
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.deliveries import accumulating, is_accumulating
from lowtide.runtime.replay import replay
from lowtide.runtime.step.hold import hold_back
from lowtide.solver.check import check
from lowtide.solver.errors import CheckError, InputError
from lowtide.solver.graph import DELIVER
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..models import SMALL, TRANSFORMERS, profiled
from ..schedules import plan_of, random_schedule, reordered

if TYPE_CHECKING:
    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.module import ReplayModule
    from lowtide.solver.graph import Graph
    from lowtide.solver.plan import Plan

    from ..models import Case

pytestmark = pytest.mark.usefixtures("one_thread")
_ALL = [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMERS)]


def _staged(captured: Captured, stages: int | None) -> Captured:
    """The step on existing gradients, with so many stages."""
    return replace(captured, program=accumulating(captured.program, stages))


def _roomy(graph: Graph, schedule: Schedule) -> Plan:
    """A plan with a budget that nothing exceeds."""
    return plan_of(graph, schedule, budget_bytes=2**50)


def _step(module: nn.Module, batch: Any) -> Any:
    out = module(**batch) if isinstance(batch, dict) else module(*batch)
    loss: Any = out if isinstance(out, torch.Tensor) else out.loss
    loss.backward()
    return out


def _measured(case: Case, module: ReplayModule) -> tuple[int, int]:
    """Peak of a step without and with gradients there, resident bytes of the step included."""
    twin, batch = copy.deepcopy(module), case.batch(0)
    _step(twin, batch)
    twin.zero_grad()
    fresh = measure_peak(lambda: _step(twin, batch)).peak_bytes
    graph = module.captured.graph
    resident = graph.resident_bytes - graph.existing_gradient_bytes
    there = sum(p.grad.untyped_storage().nbytes() for p in twin.parameters() if p.grad is not None)
    again = measure_peak(lambda: _step(twin, batch)).peak_bytes
    return resident + fresh, resident + there + again


@pytest.mark.parametrize(
    "stages",
    [pytest.param(None, marks=pytest.mark.slow), 5, pytest.param(100, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", _ALL)
def test_peak_on_existing_gradients_is_exact(name: str, stages: int | None) -> None:
    """Kept, recomputed or reordered: the peak is the predicted one, and without gradients lower."""
    case, captured = profiled(name)
    captured = _staged(captured, stages)
    graph = captured.graph
    assert stages is None or sum(op.kind == DELIVER for op in graph.ops) > 1
    for schedule in (
        Schedule.keep_everything(graph),
        random_schedule(graph, random.Random(1)),
        reordered(graph, random.Random(2)),
    ):
        module = replay(captured, _roomy(graph, schedule))
        fresh, existing = _measured(case, module)
        assert existing == module.plan.peak_bytes == module.existing_peak_bytes
        assert fresh <= existing


@pytest.mark.parametrize("name", _ALL)
def test_plans_without_gradients_foretell_the_peak_on_them(name: str) -> None:
    """A plan for steps that begin without gradients knows both its peaks to the byte."""
    case, captured = profiled(name)
    graph = captured.graph
    for schedule in (Schedule.keep_everything(graph), reordered(graph, random.Random(3))):
        module = replay(captured, _roomy(graph, schedule))
        fresh, existing = _measured(case, module)
        assert fresh == module.plan.peak_bytes
        assert existing == module.existing_peak_bytes


def _wide() -> tuple[nn.Module, torch.Tensor]:
    """Gradients outweigh activations by far."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(96, 96) for _ in range(6)], nn.Linear(96, 1)), torch.ones(
        2, 96
    )


def _square(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def test_stages_keep_the_peak_low() -> None:
    """New gradients are never all there beside the old ones."""
    model, x = _wide()
    captured = lowtide.capture(model, x, _square, times="none")
    one, many = (_staged(captured, stages).graph for stages in (1, 7))
    held = many.existing_gradient_bytes
    assert held == sum(p.nbytes for p in model.parameters())
    peaks = [simulate(g, Schedule.keep_everything(g)).peak_bytes for g in (one, many)]
    assert peaks[1] < peaks[0] - 0.6 * held


def test_solve_sees_the_stages() -> None:
    """`solve` and `check` work on such graphs; the plan says how much of it are old gradients."""
    case, captured = profiled("gpt")
    captured = _staged(captured, 5)
    plan = lowtide.solve(captured.graph, "80%", time_limit=2, method="greedy")
    assert plan.schedule.recomputes() > 0
    assert plan.existing_gradient_bytes == captured.graph.existing_gradient_bytes > 0
    assert _measured(case, replay(captured, plan))[1] == plan.peak_bytes <= plan.budget_bytes
    wrong = msgspec.structs.replace(plan, existing_gradient_bytes=0)
    with pytest.raises(CheckError, match="existing gradients"):
        check(captured.graph, wrong)


@pytest.mark.parametrize("stages", [1, 5])
def test_accumulation_is_bit_exact(stages: int) -> None:
    """Three micro-batches and a step, plain and replayed, agree in every bit and byte."""
    case, captured = profiled("mlp")
    captured = _staged(captured, stages)
    module = replay(
        captured, _roomy(captured.graph, random_schedule(captured.graph, random.Random(4)))
    )
    batches = [case.batch(i) for i in range(3)]
    found = lowtide.verify(case.model, module, batches, optimizer=None, repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes


def test_a_plan_brings_its_mode() -> None:
    """`replay` takes the plan of a step on existing gradients for the captured step without."""
    _, captured = profiled("mlp")
    there = captured.accumulating()
    assert there.accumulating() is there
    plan = plan_of(there.graph, Schedule.keep_everything(there.graph))
    module = replay(captured, plan)
    assert is_accumulating(module.captured.graph)
    assert plan.existing_gradient_bytes > 0
    with pytest.raises(InputError, match="already"):
        accumulating(there.program)


def test_exceeding_the_budget_on_existing_gradients_is_said_once() -> None:
    """A plan without gradients warns when it adds to some and that does not fit, else never."""
    model, x = _wide()
    captured = lowtide.capture(model, x, _square, times="none")
    schedule = Schedule.keep_everything(captured.graph)
    peak = simulate(captured.graph, schedule).peak_bytes
    tight = replay(captured, plan_of(captured.graph, schedule, budget_bytes=peak))
    assert tight.existing_peak_bytes > tight.plan.peak_bytes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            model.zero_grad()
            tight(x).backward()
    words = f"needs .*{tight.existing_peak_bytes} B.*accumulate=True"
    with pytest.warns(UserWarning, match=words) as told:
        tight(x).backward()
    assert told[0].filename == __file__
    budget = tight.existing_peak_bytes
    roomy = replay(captured, plan_of(captured.graph, schedule, budget_bytes=budget))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tight(x).backward()
        roomy(x).backward()


def test_deliveries_wait_for_reruns_that_read_the_weight() -> None:
    """An optimizer that steps in a gradient hook changes no weight under a later rerun."""
    model, x = _wide()
    captured = _staged(lowtide.capture(model, x, _square, times="none"), 7)
    graph = captured.graph
    first = next(
        i for i, op in enumerate(graph.ops) if captured.program.ops[i].call and op.recompute
    )
    computes = [*range(len(graph.ops)), first]
    schedule = Schedule.from_computes(graph, computes)
    held = hold_back(captured.program, schedule)
    assert held.computes()[-1] == len(graph.ops) - 1
    assert graph.ops[held.computes()[-1]].kind == DELIVER
    keep = Schedule.keep_everything(graph)
    assert hold_back(captured.program, keep) is keep
    module = replay(captured, plan_of(graph, schedule, budget_bytes=2**50))
    check(graph, msgspec.structs.replace(module.plan, time_ns=module.plan.time_ns))
    assert module.plan.schedule.computes() == held.computes()


def test_input_gradients_are_no_part_of_it() -> None:
    """The gradient of an input stays to the end, for nobody has one to add it to."""
    model, x = _wide()
    x.requires_grad_()
    captured = lowtide.capture(model, x, _square, times="none")
    there = _staged(captured, 3)
    held = sum(p.nbytes for p in model.parameters())
    assert there.graph.existing_gradient_bytes == held
    module = replay(there, _roomy(there.graph, Schedule.keep_everything(there.graph)))
    module(x).backward()
    x.grad = None
    reading = measure_peak(lambda: module(x).backward())
    assert reading.end_bytes == x.nbytes
    assert reading.peak_bytes == module.plan.peak_bytes - there.graph.resident_bytes


def test_fit_and_capture_take_it() -> None:
    """`fit(..., accumulate=True)` plans for the second micro-batch."""
    model, x = _wide()
    module = lowtide.fit(
        model, x, loss_fn=_square, memory_budget="100%", accumulate=True, times="roofline",
        time_limit=1,
    )  # fmt: skip
    assert module.plan.existing_gradient_bytes == sum(p.nbytes for p in model.parameters())
    module(x).backward()
    reading = measure_peak(lambda: module(x).backward())
    assert reading.peak_bytes + module.captured.graph.resident_bytes <= module.plan.budget_bytes


def test_later_shapes_are_planned_in_the_same_mode() -> None:
    """The plan for another batch size counts existing gradients and optimizer state as well."""
    model, x = _wide()
    module = lowtide.fit(
        model, x, loss_fn=_square, memory_budget="100%", accumulate=True, times="roofline",
        time_limit=1, optimizer="adamw", shapes=[x[:1]],
    )  # fmt: skip
    other = module.planned_for(x[:1])
    assert other is not None
    first, second = module.plan, other.plan
    assert first.existing_gradient_bytes == second.existing_gradient_bytes > 0
    assert first.resident_bytes - second.resident_bytes == x[0].nbytes
