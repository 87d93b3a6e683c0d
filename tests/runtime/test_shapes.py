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
from torch.nn import functional as F

from lowtide.runtime import plan_cache
from lowtide.runtime import shapes as shapes_module
from lowtide.runtime.fit import fit
from lowtide.runtime.meter import measure_peak
from lowtide.runtime.replay import replay
from lowtide.runtime.verify import verify
from lowtide.solver.errors import InfeasibleError, InputError, ReplayError

from .models import Mlp, fresh, square
from .schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lowtide.runtime.module import ReplayModule
    from lowtide.solver.graph import Graph
    from lowtide.solver.plan import Plan

pytestmark = pytest.mark.usefixtures("one_thread", "own_cache", "quick")
LOGGER = "lowtide.runtime.shapes"


def _planned_at_random(graph: Graph, budget: int, **_: Any) -> Plan:
    """A plan with recomputations, without a search."""
    schedule = random_schedule(graph, random.Random(3))
    assert schedule.recomputes() > 0
    return plan_of(graph, schedule, budget_bytes=budget)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of this test alone."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))


@pytest.fixture
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that cost no time, except in slow tests."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(plan_cache, "solve", _planned_at_random)


class Net(nn.Module):
    """Batch norm, dropout, residual layers of any length, an optional argument."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, scale: Any = None, times: Any = 1) -> Any:
        """The mean square."""
        for layer in self.layers:
            x = x + self.drop(F.gelu(layer(self.norm(x)))) * times
        return (x if scale is None else x * scale).square().mean()


def _net() -> Net:
    torch.manual_seed(3)
    return Net()


def _rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def _fit(model: nn.Module, **more: Any) -> ReplayModule:
    return fit(model, _rows(8), **{"memory_budget": "1MiB", "times": "roofline", **more})


@functools.cache
def _shared(policy: Any) -> ReplayModule:
    return _fit(_net(), on_new_shape=policy, max_plans=2)


def _fitted(policy: Any = "plan") -> ReplayModule:
    """A module of its own for each test, without plans of other shapes."""
    return copy.deepcopy(_shared(policy))


def _others(module: ReplayModule) -> list[Any]:
    found: list[Any] = module._shapes.others
    return found


def _train(module: nn.Module, epochs: int = 2) -> list[Any]:
    """Two epochs of batches of 8, 5 and 3 rows: all that there is to compare."""
    torch.manual_seed(11)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    seen: list[Any] = []
    for epoch in range(epochs):
        for index, count in enumerate((8, 5, 8, 3)):
            optimizer.zero_grad()
            loss = module(_rows(count, 10 * epoch + index))
            loss.backward()
            seen += [loss.detach().clone(), *(p.grad.clone() for p in module.parameters())]  # type: ignore[union-attr]
            optimizer.step()
            seen += [v.clone() for v in module.state_dict().values()]
    seen.append(torch.get_rng_state())
    return seen


def _step(module: nn.Module, *args: Any, **kwargs: Any) -> list[torch.Tensor | None]:
    """Loss, gradients, buffers and random state of one step."""
    torch.manual_seed(7)
    module.zero_grad(set_to_none=True)
    loss = module(*args, **kwargs)
    loss.backward()
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    return [loss.detach(), *grads, *(b.clone() for b in module.buffers()), torch.get_rng_state()]


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the user would see on stderr."""
    return [r.getMessage() for r in caplog.records if r.name == LOGGER and r.levelno >= 30]


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def test_training_with_three_shapes_is_exact(caplog: pytest.LogCaptureFixture) -> None:
    """Two epochs with smaller last batches: losses, gradients, state, random state, to the bit."""
    plain = _net()
    module = _fitted()
    with caplog.at_level(logging.WARNING, LOGGER):
        found = _train(module)
    assert _equal(found, _train(plain))
    assert [p.captured.program.guards[0].shape for p in _others(module)] == [(3, 6), (5, 6)]
    assert {p.plan.budget_bytes for p in _others(module)} == {module.plan.budget_bytes}
    lines = _lines(caplog)
    assert [line.split(" ")[0] for line in lines] == ["planning", "new"] * 2
    assert "has shape [5, 6]; the plan was made for [8, 6]" in lines[0]
    assert "has shape [5, 6]; the plan was made for [8, 6]. Planned in " in lines[1]
    assert "shapes=[...]" in lines[1]


def test_shapes_given_ahead_are_planned_ahead(caplog: pytest.LogCaptureFixture) -> None:
    """Batches in `shapes` and `prepare` cost nothing, and say nothing, when they come."""
    module = _fit(_net(), shapes=[_rows(5)])
    assert len(_others(module)) == 1
    assert module.prepare((_rows(3),)) is _others(module)[0].plan
    assert module.prepare(_rows(8)) is module.plan
    with caplog.at_level(logging.WARNING, LOGGER):
        _train(module)
    assert not _lines(caplog)
    assert len(_others(module)) == 2
    with pytest.raises(InputError, match="2 further shapes are given and max_plans is 1"):
        _fit(_net(), shapes=[_rows(5), _rows(3)], max_plans=1)


@pytest.mark.filterwarnings("ignore:this backward adds to gradients")
def test_forwards_of_several_shapes_before_their_backwards() -> None:
    """Gradients of steps of several shapes add up, whatever the order of the backwards."""
    plain = _net()
    module = _fit(copy.deepcopy(plain), max_plans=1)
    found: list[list[Any]] = [[], []]
    for order in ((0, 1, 2), (2, 0, 1)):
        for run, seen in zip((plain, module), found, strict=True):
            torch.manual_seed(5)
            losses = [run(_rows(count)) for count in (5, 8, 3)]  # the plan for 5 is dropped by then
            for place in order:
                losses[place].backward()
            seen += [*losses, *(p.grad.clone() for p in run.parameters()), *run.buffers()]  # type: ignore[union-attr]
    assert len(_others(module)) == 1
    assert _equal(*found)


def test_plain_policy(caplog: pytest.LogCaptureFixture) -> None:
    """`plain` runs new shapes without a plan and says so once."""
    plain = _net()
    module = _fitted("plain")
    with caplog.at_level(logging.WARNING, LOGGER):
        assert _equal(_train(module), _train(plain))
    assert not _others(module)
    lines = _lines(caplog)
    assert len(lines) == 2
    assert "It runs without a plan" in lines[1]


def test_refuse_policy() -> None:
    """`refuse` raises for what was not planned ahead."""
    module = _fit(_net(), on_new_shape="refuse", shapes=[_rows(5)])
    module(_rows(5))
    with pytest.raises(ReplayError, match=r"\[8, 6\], nor is any of 2 .*prepare\(\)$"):
        module(_rows(3))
    next(module.parameters()).requires_grad_(False)
    with pytest.raises(ReplayError, match=r"norm.weight is frozen now and was trained when"):
        module(_rows(8))


@pytest.mark.parametrize(
    ("more", "message"),
    [({"on_new_shape": "ask"}, "choose plan, plain or refuse"), ({"max_plans": 0}, "at least 1")],
)
def test_settings_are_checked(more: Any, message: str) -> None:
    """Unknown policies and sizes are refused before anything is captured."""
    with pytest.raises(InputError, match=message):
        _fit(_net(), **more)


def test_what_runs_plain_is_never_planned() -> None:
    """Neither `no_grad` nor eval mode plans, nor a step in which nothing is trained."""
    module = _fitted()
    with torch.no_grad():
        module(_rows(2))
    module.eval()
    assert module(_rows(2)).requires_grad
    module.train()
    module.requires_grad_(False)
    assert not module(_rows(2)).requires_grad
    assert not _others(module)


def _one_in_eval(module: Any) -> None:
    module.norm.eval()


_KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[], tuple[Any, dict[str, Any]]]]] = {
    "frozen": (lambda m: m.layers[0].requires_grad_(False), lambda: ((_rows(8),), {})),
    "double": (lambda m: m.double(), lambda: ((_rows(8).double(),), {})),
    "one in eval": (_one_in_eval, lambda: ((_rows(8),), {})),
    "more arguments": (lambda m: None, lambda: ((_rows(8),), {"scale": torch.ones(6)})),
    "by keyword": (lambda m: None, lambda: ((), {"x": _rows(4), "scale": torch.ones(6)})),
    "strides": (lambda m: None, lambda: ((_rows(12)[::2],), {})),
    "trained input": (lambda m: None, lambda: ((_rows(8).requires_grad_(),), {})),
}


@pytest.mark.filterwarnings("ignore:this backward adds to gradients")
@pytest.mark.parametrize("kind", _KINDS)
def test_new_kinds_of_calls_are_planned(kind: str) -> None:
    """Frozen layers, types, modes, arguments: each gets its own plan, and is exact."""
    change, call = _KINDS[kind]
    plain = _net()
    module = _fitted()
    for run in (plain, module):
        change(run)
    for _ in range(2):
        args, kwargs = call()
        assert _equal(_step(plain, *args, **kwargs), _step(module, *args, **kwargs))
    assert len(_others(module)) == 1


def test_freezing_and_back() -> None:
    """After freeze and unfreeze the first plan serves again; gradients are None while frozen."""
    module = _fitted()
    layer: Any = module.layers[0]
    for frozen in (True, False, True):
        layer.requires_grad_(not frozen)
        _step(module, _rows(8))
        assert (layer.weight.grad is None) == frozen
    assert len(_others(module)) == 1
    made = _others(module)[0].captured.program.gradients
    assert sum(gradient.value is None for gradient in made) == 2


def test_autocast_is_a_kind_of_its_own() -> None:
    """A step under autocast has its own plan."""
    plain = _net()
    module = _fitted()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert _equal(_step(plain, _rows(8)), _step(module, _rows(8)))
    assert len(_others(module)) == 1
    assert _equal(_step(plain, _rows(8)), _step(module, _rows(8)))
    assert len(_others(module)) == 1


def _tie(module: Any) -> None:
    module.layers[1].weight = module.layers[0].weight


_CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "hook": (lambda m: m.drop.register_forward_hook(lambda *_: None), "got a forward hook"),
    "rate": (lambda m: setattr(m.drop, "p", 0.5), "drop.p is 0.5 and was 0.3 when captured"),
    "child": (lambda m: m.layers.append(nn.Linear(6, 6)), "has 4 children and had 3"),
    "shape": (lambda m: m.norm.register_buffer("running_mean", torch.zeros(1)), r"float32\[1\]"),
    "code": (lambda m: setattr(m.drop, "forward", lambda x: x), "has another forward"),
}


@pytest.mark.parametrize("policy", ["plan", "plain"])
@pytest.mark.parametrize("what", _CHANGES)
def test_another_module_is_refused(what: str, policy: Any) -> None:
    """A changed module is refused whatever the policy and the shape, and costs no plan."""
    change, message = _CHANGES[what]
    module = _fitted(policy)
    change(module)
    for count in (8, 5):
        with pytest.raises(ReplayError, match=message):
            module(_rows(count))
    assert not _others(module)


def test_untied_weights_are_refused() -> None:
    """Weights that were tied when captured must stay so, for every shape."""
    net = _net()
    _tie(net)
    module = _fit(net)
    module.layers[1].weight = nn.Parameter(torch.ones(6, 6))
    with pytest.raises(ReplayError, match="were one tensor when captured and are two now"):
        module(_rows(5))


def test_a_changing_number_is_refused() -> None:
    """A number is planned if asked for, not each time that another one comes."""
    module = fit(_net(), (_rows(8), None, 1), memory_budget="1MiB", times="roofline")
    with pytest.raises(ReplayError, match="argument 2 is 2, a number that no plan was made for"):
        module(_rows(8), None, 2)
    assert not _others(module)
    module.prepare((_rows(8), None, 2))
    plain = copy.deepcopy(module.captured.model)
    assert _equal(_step(plain, _rows(8), None, 2), _step(module, _rows(8), None, 2))
    with pytest.raises(ReplayError, match="argument 2 is 3"):
        module(_rows(5), None, 3)
    module(_rows(5), None, 2)
    assert len(_others(module)) == 2


def test_plans_used_longest_ago_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """At most `max_plans` beside the first; dropping is said once, with what to do."""
    module = _fitted()
    with caplog.at_level(logging.WARNING, LOGGER):
        for count in (2, 3, 2, 4):
            module(_rows(count))
    shapes = [planned.captured.program.guards[0].shape[0] for planned in _others(module)]
    assert shapes == [4, 2]
    lines = [line for line in _lines(caplog) if "used longest ago" in line]
    assert len(lines) == 1
    assert "Pad batches to few shapes" in lines[0]


def test_a_shape_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot meet the budget is named, with the smallest budget that it can."""
    module = _fitted()

    def solve(*_: Any, **__: Any) -> Any:
        raise InfeasibleError("the smallest budget found is 9 B", smallest_bytes=9, proven=True)

    monkeypatch.setattr(plan_cache, "solve", solve)
    message = r"new call \(positional argument 0 has shape \[80, 6\]; .*\): .*smallest .* is 9 B"
    with pytest.raises(InfeasibleError, match=message) as caught:
        module(_rows(80))
    assert caught.value.smallest_bytes == 9
    assert caught.value.proven
    assert not _others(module)
    module(_rows(8))


def _no_planning(*_: Any, **__: Any) -> Any:
    raise AssertionError("planned again")


@functools.cache
def _with_two_more() -> ReplayModule:
    return _fit(_net(), shapes=[_rows(5), _rows(3)])


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_have_all_plans(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and pickles take their plans along, with parameters of their own."""
    module = _with_two_more()
    wanted = [_step(copy.deepcopy(module), _rows(count)) for count in (8, 5, 3)]
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
    assert all(planned.captured.model is twin.captured.model for planned in _others(twin))
    assert not any(id(p) in mine for p in twin.parameters())
    for count, result in zip((8, 5, 3), wanted, strict=True):
        assert _equal(_step(copy.deepcopy(twin), _rows(count)), result)
    with pytest.raises(AssertionError, match="planned again"):
        twin(_rows(2))


def test_plans_hold_no_tensors() -> None:
    """Of a further shape nothing stays but the plan: no parameter, activation or batch."""
    module = _fitted()

    def tensors() -> int:
        gc.collect()
        storages = {
            t.untyped_storage()._cdata: t.untyped_storage().nbytes()
            for t in gc.get_objects()
            if type(t) in (torch.Tensor, nn.Parameter) and t.device.type != "meta"
        }
        return sum(storages.values())

    before = tensors()
    module.prepare(_rows(500))
    module(_rows(700)).backward()
    module.zero_grad(set_to_none=True)
    assert len(_others(module)) == 2
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
