"""Times of whole steps."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.frontends.torch.capture import capture
from lowtide.runtime import calibrate as module
from lowtide.runtime.calibrate import calibrate
from lowtide.runtime.rng import random_states

if TYPE_CHECKING:
    from lowtide import Captured
    from lowtide.solver.calibration import Calibration

SIZE = 32


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(module, "_SEARCH_S", 0.2)
    monkeypatch.setattr(module, "SHARES", (0.5, 0.1))
    monkeypatch.setattr(module, "_STEPS_S", 0.05)
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


def test_without_the_plain_step_no_code_of_the_model_runs() -> None:
    """`plain=False` replays only."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = _step(net, batch)
    ran = []
    net.forward = lambda *a: ran.append(a)  # type: ignore[assignment, method-assign]
    found = calibrate(replace(captured), batch, plain=False).graph.calibration
    assert not ran
    assert found is None or found.plain_ns == -1


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


def test_capture_and_fit_calibrate() -> None:
    """`times="calibrated"`, the default of `fit`, tells overheads by whole steps."""
    net, batch = _Net(), torch.randn(64, SIZE)
    captured = lowtide.capture(net, batch, times="calibrated")
    assert captured.graph.calibration is not None
    plan = lowtide.solve(captured.graph, "60%", time_limit=2)
    assert plan.overhead_over_plain is not None
    fitted = lowtide.fit(net, batch, memory_budget="60%", time_limit=2)
    assert fitted.plan.calibration is not None
    assert fitted.plan.calibration == fitted.captured.graph.calibration
    lowtide.check(fitted.captured.graph, fitted.plan)
    bare = lowtide.fit(net, batch, memory_budget="60%", time_limit=2, times="measured")
    assert bare.plan.calibration is None
    assert bare.plan.steps == fitted.plan.steps
    # Times that are put in by hand are no longer those of the steps.
    assert captured.with_costs(time_ns=[1] * len(captured.graph.ops)).graph.calibration is None
