"""A module made by `fit` has a plan for each kind of call, and is exact across all of them."""

from __future__ import annotations

import copy
import functools
import gc
import io
import logging
import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.plans import plan_cache
from lowtide.runtime.plans import shapes as shapes_module
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import InfeasibleError, InputError, ReplayError

from ..kinds import (
    LOGGER,
    all_equal,
    fit_net,
    fitted,
    lines_of,
    made_net,
    one_step,
    others_of,
    rows_of,
    trained,
)
from ..models import Mlp, fresh, square
from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread", "own_cache", "quick")


def test_training_with_three_shapes_is_exact(caplog: pytest.LogCaptureFixture) -> None:
    """Two epochs with smaller last batches: losses, gradients, state, random state, to the bit."""
    plain = made_net()
    module = fitted()
    with caplog.at_level(logging.WARNING, LOGGER):
        found = trained(module)
    assert all_equal(found, trained(plain))
    assert [p.captured.program.guards[0].shape for p in others_of(module)] == [(3, 6), (5, 6)]
    assert {p.plan.budget_bytes for p in others_of(module)} == {module.plan.budget_bytes}
    lines = lines_of(caplog)
    assert [line.split(" ")[0] for line in lines] == ["planning", "new"] * 2
    assert "has shape [5, 6]; the plan was made for [8, 6]" in lines[0]
    assert "has shape [5, 6]; the plan was made for [8, 6]. Planned in " in lines[1]
    assert others_of(module)[1].plan.summary in lines[1]
    assert "shapes=[...]" in lines[1]


def test_shapes_given_ahead_are_planned_ahead(caplog: pytest.LogCaptureFixture) -> None:
    """Batches in `shapes` and `prepare` cost nothing, and say nothing, when they come."""
    module = fit_net(made_net(), shapes=[rows_of(5)])
    assert len(others_of(module)) == 1
    assert module.prepare((rows_of(3),)) is others_of(module)[0].plan
    assert module.prepare(rows_of(8)) is module.plan
    with caplog.at_level(logging.WARNING, LOGGER):
        trained(module)
    assert not lines_of(caplog)
    assert len(others_of(module)) == 2
    with pytest.raises(InputError, match="2 further shapes are given and max_plans is 1"):
        fit_net(made_net(), shapes=[rows_of(5), rows_of(3)], max_plans=1)


@pytest.mark.filterwarnings("ignore:this backward adds to gradients")
def test_forwards_of_several_shapes_before_their_backwards() -> None:
    """Gradients of steps of several shapes add up, whatever the order of the backwards."""
    plain = made_net()
    module = fit_net(copy.deepcopy(plain), max_plans=1)
    found: list[list[Any]] = [[], []]
    for order in ((0, 1, 2), (2, 0, 1)):
        for run, seen in zip((plain, module), found, strict=True):
            torch.manual_seed(5)
            losses = [
                run(rows_of(count)) for count in (5, 8, 3)
            ]  # the plan for 5 is dropped by then
            for place in order:
                losses[place].backward()
            seen += [*losses, *(p.grad.clone() for p in run.parameters()), *run.buffers()]  # type: ignore[union-attr]
    assert len(others_of(module)) == 1
    assert all_equal(*found)


def test_plain_policy(caplog: pytest.LogCaptureFixture) -> None:
    """`plain` runs new shapes without a plan and says so once."""
    plain = made_net()
    module = fitted("plain")
    with caplog.at_level(logging.WARNING, LOGGER):
        assert all_equal(trained(module), trained(plain))
    assert not others_of(module)
    lines = lines_of(caplog)
    assert len(lines) == 2
    assert "It runs without a plan" in lines[1]


def test_refuse_policy() -> None:
    """`refuse` raises for what was not planned ahead."""
    module = fit_net(made_net(), on_new_shape="refuse", shapes=[rows_of(5)])
    module(rows_of(5))
    with pytest.raises(ReplayError, match=r"\[8, 6\], nor is any of 2 .*prepare\(\)$"):
        module(rows_of(3))
    next(module.parameters()).requires_grad_(False)
    with pytest.raises(ReplayError, match=r"norm.weight is frozen now and was trained when"):
        module(rows_of(8))


@pytest.mark.parametrize(
    ("more", "message"),
    [({"on_new_shape": "ask"}, "choose plan, plain or refuse"), ({"max_plans": 0}, "at least 1")],
)
def test_settings_are_checked(more: Any, message: str) -> None:
    """Unknown policies and sizes are refused before anything is captured."""
    with pytest.raises(InputError, match=message):
        fit_net(made_net(), **more)


def test_what_runs_plain_is_never_planned() -> None:
    """Neither `no_grad` nor eval mode plans, nor a step in which nothing is trained."""
    module = fitted()
    with torch.no_grad():
        module(rows_of(2))
    module.eval()
    assert module(rows_of(2)).requires_grad
    module.train()
    module.requires_grad_(False)
    assert not module(rows_of(2)).requires_grad
    assert not others_of(module)


def test_plans_used_longest_ago_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """At most `max_plans` beside the first; dropping is said once, with what to do."""
    module = fitted()
    with caplog.at_level(logging.WARNING, LOGGER):
        for count in (2, 3, 2, 4):
            module(rows_of(count))
    shapes = [planned.captured.program.guards[0].shape[0] for planned in others_of(module)]
    assert shapes == [4, 2]
    lines = [line for line in lines_of(caplog) if "used longest ago" in line]
    assert len(lines) == 1
    assert "Pad batches to few shapes" in lines[0]


def test_a_shape_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot meet the budget is named, with the smallest budget that it can."""
    module = fitted()

    def solve(*_: Any, **__: Any) -> Any:
        raise InfeasibleError("the smallest budget found is 9 B", smallest_bytes=9, proven=True)

    monkeypatch.setattr(plan_cache, "solve", solve)
    message = r"new call \(positional argument 0 has shape \[80, 6\]; .*\): .*smallest .* is 9 B"
    with pytest.raises(InfeasibleError, match=message) as caught:
        module(rows_of(80))
    assert caught.value.smallest_bytes == 9
    assert caught.value.proven
    assert not others_of(module)
    module(rows_of(8))


def _no_planning(*_: Any, **__: Any) -> Any:
    raise AssertionError("planned again")


@functools.cache
def _with_two_more() -> ReplayModule:
    return fit_net(made_net(), shapes=[rows_of(5), rows_of(3)])


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_have_all_plans(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and pickles take their plans along, with parameters of their own."""
    module = _with_two_more()
    wanted = [one_step(copy.deepcopy(module), rows_of(count)) for count in (8, 5, 3)]
    monkeypatch.setattr(shapes_module, "capture_call", _no_planning)
    if how == "deepcopy":
        twin = copy.deepcopy(module)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(module))
    else:
        stream = io.BytesIO()
        torch.save(module, stream)
        stream.seek(0)
        twin = torch.load(stream, weights_only=False)
    mine = set(map(id, module.parameters()))
    assert all(planned.captured.model is twin.captured.model for planned in others_of(twin))
    assert not any(id(p) in mine for p in twin.parameters())
    for count, result in zip((8, 5, 3), wanted, strict=True):
        assert all_equal(one_step(copy.deepcopy(twin), rows_of(count)), result)
    with pytest.raises(AssertionError, match="planned again"):
        twin(rows_of(2))


def test_plans_hold_no_tensors() -> None:
    """Of a further shape nothing stays but the plan: no parameter, activation or batch."""
    module = fitted()

    def tensors() -> int:
        gc.collect()
        storages = {
            t.untyped_storage()._cdata: t.untyped_storage().nbytes()
            for t in gc.get_objects()
            if type(t) in (torch.Tensor, nn.Parameter) and t.device.type != "meta"
        }
        return sum(storages.values())

    before = tensors()
    module.prepare(rows_of(500))
    module(rows_of(700)).backward()
    module.zero_grad(set_to_none=True)
    assert len(others_of(module)) == 2
    assert tensors() == before


@pytest.mark.slow
def test_every_shape_keeps_the_budget() -> None:
    """With measured costs, the measured peak of each shape is its plan's, within one budget."""
    torch.manual_seed(0)
    model, batches = Mlp(width=8, depth=6), [torch.randn(n, 8) for n in (50, 40, 33)]
    module = fit(model, batches[0], memory_budget="60%", loss_fn=square, time_limit=5)
    found = verify(model, module, batches, repeats=1)
    assert found.ok, found.first_difference
    for batch in batches:
        module(batch)
        planned = module.planned_for(batch)
        assert planned is not None

        def step(batch: torch.Tensor = batch) -> torch.Tensor:
            module.zero_grad(set_to_none=True)
            loss: torch.Tensor = module(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        module.zero_grad(set_to_none=True)
        peak = planned.captured.graph.resident_bytes + measure_peak(step).peak_bytes
        assert peak == planned.plan.peak_bytes <= module.plan.budget_bytes
    assert found.replay_peak_bytes == found.predicted_peak_bytes


def test_replay_stays_strict() -> None:
    """A module of one plan refuses another shape and plans none."""
    _, captured = fresh("mlp")
    schedule = random_schedule(captured.graph, random.Random(3))
    module = replay(captured, plan_of(captured.graph, schedule))
    assert module.prepare(torch.randn(7, 24)) is module.plan
    with pytest.raises(ReplayError, match="one plan: use fit"):
        module.prepare(torch.randn(5, 24))
    with pytest.raises(ReplayError, match="plan was made for"):
        module(torch.randn(5, 24))
