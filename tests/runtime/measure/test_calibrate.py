"""Times of whole steps."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide import Captured
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.generators import random_states
from lowtide.runtime.measure import calibrate as module
from lowtide.runtime.measure import rounds, step_times
from lowtide.runtime.measure.calibrate import calibrate
from lowtide.runtime.plans import fit
from lowtide.solver.calibration import digest_of
from lowtide.solver.errors import CheckError, InputError, NoPlanError
from lowtide.solver.solve import solve

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from lowtide.solver.calibration import Calibration

SIZE = 32


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(module, "_SEARCH_S", 0.2)
    monkeypatch.setattr(module, "SHARES", (0.5, 0.1))
    for seconds in ("_STEPS_S", "_MORE_S", "_EACH_S"):
        monkeypatch.setattr(module, seconds, 0.05)
    # Steps of microseconds, beside other tests: their times are not what is tested here.
    monkeypatch.setattr(step_times, "MOST_NOISE", 10.0)
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))


class _Net(nn.Module):
    """Dropout, a buffer that counts, and several layers worth computing again."""

    calls: torch.Tensor

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(layers))
        self.norm = nn.BatchNorm1d(SIZE)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        out: torch.Tensor = self.norm(x)
        return out.square().mean()


def _step(net: nn.Module, batch: torch.Tensor) -> Captured:
    captured = capture(net, batch, times="roofline", device="cpu")
    return captured.with_costs(time_ns=[1000] * len(captured.graph.ops))


@pytest.fixture
def _one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARES", ())


def _state(net: nn.Module) -> list[torch.Tensor]:
    return [t.clone() for t in (*net.state_dict().values(), *random_states())]


def test_whole_steps_are_timed_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan gets a measured time; model, gradients and random state are as before."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)
    before = _state(net)
    found = calibrate(captured, batch).graph.calibration
    assert all(torch.equal(a, b) for a, b in zip(before, _state(net), strict=True))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert found is not None
    assert found.points[0][0] == sum(op.time_ns for op in captured.graph.ops)
    assert len(found.points) > 1
    assert found.plain_ns > 0
    # Known from now on: no step is run again.
    monkeypatch.setattr(module, "_measured", None)
    assert calibrate(captured, batch).graph.calibration == found
    assert calibrate(captured, batch, plain=False).graph.calibration == found


def test_without_the_plain_step_no_code_of_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`plain=False` replays only, and is enough where nobody asks for more."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)
    with monkeypatch.context() as patch:
        patch.setattr(Captured, "call", _fails)
        assert calibrate(captured, batch).graph.calibration is None
        found = calibrate(captured, batch, plain=False).graph.calibration
        assert found is not None
        assert found.plain_ns == -1
    more = calibrate(captured, batch).graph.calibration
    assert more is not None
    assert more.plain_ns > 0


def test_outputs_without_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """Where the loss is the caller's, every output gets a gradient."""
    net = nn.Sequential(*[nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh()) for _ in range(6)])
    batch = torch.randn(64, SIZE, requires_grad=True)
    caplog.set_level(logging.INFO)
    found = calibrate(_step(net, batch), batch).graph.calibration
    assert found is not None, caplog.text
    assert batch.grad is None


def test_gradients_that_are_added_to() -> None:
    """Steps that accumulate are timed as such."""
    net, batch = _Net(), torch.randn(64, SIZE)
    found = calibrate(_step(net, batch).accumulating(), batch).graph.calibration
    assert found is not None
    assert found.plain_ns > 0


def _no_room(_: torch.device) -> int:
    return 1000


def _fails(*_: Any) -> Calibration:
    raise RuntimeError("cannot copy\nmore")


@pytest.mark.parametrize(
    ("name", "stand_in", "reason"),
    [("available_bytes", _no_room, "1000 B are free"), ("_measured", _fails, "cannot copy")],
)
def test_where_steps_cannot_run_op_times_add_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, stand_in: Any,
    reason: str,
) -> None:  # fmt: skip
    """One line says why, the step stays usable and nothing is kept."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, stand_in)
        caplog.set_level(logging.INFO, logger=module.__name__)
        same = calibrate(captured, batch)
    assert same.graph.calibration is None
    lines = [r.message for r in caplog.records if r.name == module.__name__]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "\n" not in lines[0]
    assert calibrate(captured, batch).graph.calibration is not None


def test_inputs_without_data(caplog: pytest.LogCaptureFixture) -> None:
    """A step that was captured on the meta device cannot run."""
    with torch.device("meta"):
        net, batch = _Net(), torch.randn(64, SIZE)
    caplog.set_level(logging.INFO)
    assert calibrate(_step(net, batch), batch).graph.calibration is None
    assert "no data" in caplog.text


def test_capture_and_fit_calibrate(caplog: pytest.LogCaptureFixture) -> None:
    """`times="calibrated"`, the default of `fit`, tells overheads by whole steps, and in a line."""
    caplog.set_level(logging.INFO, logger=fit.__name__)
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = lowtide.capture(net, batch, times="calibrated")
    assert captured.graph.calibration is not None
    plan = lowtide.solve(captured.graph, "60%", time_limit=2)
    assert plan.overhead_over_plain is not None
    fitted = lowtide.fit(net, batch, memory_budget="60%", time_limit=2)
    assert fitted.plan.calibration is not None
    assert fitted.plan.calibration == fitted.captured.graph.calibration
    lowtide.check(fitted.captured.graph, fitted.plan)
    assert fitted.plan.measured_overhead is not None
    assert [r.getMessage() for r in caplog.records if r.name == fit.__name__] == [
        f"planned _Net: {fitted.plan.summary}"
    ]
    bare = lowtide.fit(net, batch, memory_budget="60%", time_limit=2, times="measured")
    assert bare.plan.calibration is None
    assert bare.plan.steps == fitted.plan.steps
    # Times that are put in by hand are no longer those of the steps.
    assert captured.with_costs(time_ns=[1] * len(captured.graph.ops)).graph.calibration is None


def test_plans_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans that are given, against the steps that were known; nobody else's numbers change."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = calibrate(_step(net, batch), batch)
    known = captured.graph.calibration
    assert known is not None
    plans = [solve(captured.graph, budget, time_limit=1) for budget in ("50%", "80%", "max")]
    before = _state(net)
    again, timed = lowtide.time_plans(captured, batch, plans)
    assert all(torch.equal(a, b) for a, b in zip(before, _state(net), strict=True))
    found = again.graph.calibration
    assert found is not None
    assert found.points == known.points
    assert {one.plan for one in found.timed} == {digest_of(plan.steps) for plan in plans[:2]}
    for plan, same in zip(plans, timed, strict=True):
        lowtide.check(again.graph, same)
        assert plan.measured_overhead is None
    assert all(plan.measured_over_plain is not None for plan in timed[:2])
    assert timed[2].measured_overhead is None  # computes nothing again: the scale itself
    with monkeypatch.context() as patch:
        patch.setattr(module, "_measured", None)
        assert lowtide.time_plans(captured, batch, iter(plans))[1] == timed  # looked at twice
        assert calibrate(_step(net, batch), batch).graph.calibration == found
    # Without the cache, what the step itself knows goes on to count.
    more, _ = lowtide.time_plans(captured, batch, plans[:1], cache=False)
    assert more.graph.calibration is not None
    assert more.graph.calibration.points == known.points


def test_plans_that_cannot_be_timed_keep_their_predictions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line says why, and what was known stays."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = calibrate(_step(net, batch), batch)
    plan = solve(captured.graph, "50%", time_limit=1)
    monkeypatch.setattr(module, "available_bytes", _no_room)
    caplog.set_level(logging.INFO, logger=module.__name__)
    assert lowtide.time_plans(captured, batch, [plan])[1] == [plan]
    assert "overheads are told by steps of other plans: " in caplog.text
    with pytest.raises(CheckError, match="another graph"):
        lowtide.time_plans(_step(_Net(3), batch), batch, [plan])


def test_what_is_no_list_of_plans_is_one_line() -> None:
    """A step, a batch and plans, in that order."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)
    plan = solve(captured.graph, "max", time_limit=1)
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((captured, batch, plan), r"write \[plan\] for one"),
        ((captured, batch, None), "a list of plans, not a NoneType"),
        ((captured, batch, [plan, "plan"]), "a str is among them"),
        ((net, batch, [plan]), "a captured step first, not a _Net"),
        ((captured, [plan]), "it needs captured, batch, plans"),
    ]
    for given, line in wrong:
        with pytest.raises(InputError, match=line):
            lowtide.time_plans(*given)


def test_many_plans_take_turns_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group with its own steps to be told against."""
    monkeypatch.setattr(rounds, "GROUP", 1)
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = calibrate(_step(net, batch), batch)
    assert captured.graph.calibration is not None
    plans = [solve(captured.graph, budget, time_limit=1) for budget in ("50%", "80%")]
    timed = lowtide.time_plans(captured, batch, plans)[1]
    assert all(plan.measured_overhead is not None for plan in timed)


class _Itself(nn.Sequential):
    """Its copy is the model itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Itself:
        return self


def _over_model() -> tuple[nn.Module, Any, list[torch.Tensor]]:
    net = nn.Sequential(_body(), nn.BatchNorm1d(SIZE))
    weights = list(net.parameters())
    return net, lambda out: out.square().mean() + sum(w.square().sum() for w in weights), []


def _method_of_model() -> tuple[nn.Module, Any, list[torch.Tensor]]:
    net = _Net()
    forward = net.forward
    net.forward = lambda x: forward(x) * 2  # type: ignore[method-assign]
    return net, None, []


def _writes_outside() -> tuple[nn.Module, Any, list[torch.Tensor]]:
    seen = torch.zeros(SIZE)

    def loss(out: torch.Tensor) -> torch.Tensor:
        seen.add_(out.detach().mean(0))
        return out.square().mean()

    return _body(), loss, [seen]


def _copied_as_itself() -> tuple[nn.Module, Any, list[torch.Tensor]]:
    return nn.Sequential(_body(), _Itself(nn.BatchNorm1d(SIZE))), _square, []


def _body() -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh()) for _ in range(6)])


def _square(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


_ENTANGLED = [_over_model, _method_of_model, _writes_outside, _copied_as_itself]


@pytest.mark.usefixtures("_one_plan")
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("make", _ENTANGLED)
def test_what_a_copy_shares_stays(make: Any, plain: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Steps that would change the original through its copy are not run, and a line says so."""
    net, loss, outside = make()
    batch = torch.randn(64, SIZE)
    captured = capture(net, batch, loss, times="roofline", device="cpu")
    captured = captured.with_costs(time_ns=[1000] * len(captured.graph.ops))
    before = [*_state(net), *(t.clone() for t in outside)]
    caplog.set_level(logging.INFO)
    found = calibrate(captured, batch, plain=plain).graph.calibration
    after = [*_state(net), *outside]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert found is None or found.plain_ns == -1
    assert found is not None or "would change the original" in caplog.text


@pytest.mark.usefixtures("_one_plan")
def test_a_plain_step_that_cannot_be_timed_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss that counts its calls is called no more than the capture needs."""
    calls = []

    def loss(out: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return out.square().mean()

    net, batch = _body(), torch.randn(64, SIZE)
    captured = capture(net, batch, loss, times="roofline", device="cpu")
    captured = captured.with_costs(time_ns=[1000] * len(captured.graph.ops))
    count = len(calls)
    caplog.set_level(logging.INFO)
    found = calibrate(captured, batch).graph.calibration
    assert len(calls) == count
    assert "it changes calls of the loss" in caplog.text
    assert found is not None
    assert found.plain_ns == -1
    monkeypatch.setattr(module, "_measured", None)
    assert calibrate(captured, batch).graph.calibration == found


class _Loss(nn.Linear):
    def forward(self, out: torch.Tensor) -> torch.Tensor:
        return super().forward(out).square().mean()


@pytest.mark.filterwarnings("error")
def test_a_loss_with_parameters_begins_each_step_without_gradients() -> None:
    """No warning of gradients that are there already."""
    net, batch, loss = _body(), torch.randn(64, SIZE), _Loss(SIZE, 2)
    captured = capture(net, batch, loss, times="roofline", device="cpu")
    captured = captured.with_costs(time_ns=[1000] * len(captured.graph.ops))
    assert calibrate(captured, batch).graph.calibration is not None
    assert all(parameter.grad is None for parameter in loss.parameters())


@pytest.mark.usefixtures("_one_plan")
def test_in_any_context_and_with_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are run with gradients on; whatever a copy raises costs the times only."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)
    with torch.no_grad():
        assert calibrate(captured, batch).graph.calibration is not None

    def refuses(memo: dict[int, Any]) -> nn.Module:
        raise KeyError("no copies")

    monkeypatch.setattr(net, "__deepcopy__", refuses, raising=False)
    assert calibrate(captured, batch, cache=False).graph.calibration is None


def test_ctrl_c_while_its_plans_are_made_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver's own handling of Ctrl-C does not swallow it."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)

    def pressed(graph: Any, budget: Any, *, interrupt: threading.Event, **more: Any) -> Any:
        if budget != "max":
            interrupt.set()  # and the search has a plan, or none
            raise NoPlanError("none in time")
        return solve(graph, budget, interrupt=interrupt, **more)

    monkeypatch.setattr(module, "solve", pressed)
    with pytest.raises(KeyboardInterrupt):
        calibrate(captured, batch)


@pytest.mark.usefixtures("_one_plan")
@pytest.mark.parametrize("points", [[[5, 5], [4, 9]], [[5, 5]], []])
def test_a_damaged_file_is_measured_anew(points: list[list[int]], tmp_path: Path) -> None:
    """Points that fall, that are of other op times, and none at all."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)
    calibrate(captured, batch)
    (path,) = tmp_path.glob("steps-*.json")
    document = json.loads(path.read_bytes())
    for entry in document["entries"].values():
        entry["points"] = points
    path.write_text(json.dumps(document))
    found = calibrate(captured, batch).graph.calibration
    assert found is not None
    assert calibrate(captured, batch).graph.calibration == found
