"""`verify` finds what is wrong, and leaves everything as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.runtime.verify import Verification, _loss, verify
from lowtide.solver.errors import InputError, ReplayError
from lowtide.solver.schedule import Schedule

from .models import Case, fresh, make
from .schedules import plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


def _replayed(name: str) -> tuple[Case, Any]:
    case, captured = fresh(name)
    return case, replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


def _verify(case: Case, module: Any, **more: Any) -> Verification:
    return verify(case.model, module, [case.batch(0), case.batch(1)], measure=False, **more)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", None])
def test_nothing_of_the_caller_changes(optimizer: Any) -> None:
    """Parameters, buffers, gradients, random state and batches are as before."""
    case, module = _replayed("cnn")
    state = {k: v.clone() for k, v in module.state_dict().items()}
    generator = torch.get_rng_state()
    found = _verify(case, module, optimizer=optimizer)
    assert found.ok, found.first_difference
    assert found.first_difference is None
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in case.model.parameters())
    assert torch.equal(generator, torch.get_rng_state())


def test_measurements() -> None:
    """Peaks and times are there when asked for, and the peak is near what was predicted."""
    case, module = _replayed("mlp")
    found = verify(case.model, module, [case.batch(0)], repeats=2)
    assert found.plain_seconds > 0
    assert found.replay_seconds > 0
    assert found.plain_peak_bytes > 0
    assert abs(found.replay_peak_bytes - found.predicted_peak_bytes) < found.replay_peak_bytes / 4
    assert _verify(case, module).replay_peak_bytes == -1


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("relu", "sigmoid", "loss"),
        ("threshold_backward_grad_input", None, "gradient"),
        ("write_back", None, "buffer"),
    ],
)
def test_a_wrong_program_is_found(old: str, new: str | None, kind: str) -> None:
    """A wrong op in forward, in backward, or a lost buffer update is reported by kind."""
    case, module = _replayed("cnn")
    code = module._wiring.code
    scope = (code.backward if old.startswith("threshold_backward") else code.forward).__globals__
    aten: Any = torch.ops.aten
    wrong: Any = {
        "relu": lambda x: aten.sigmoid(x),
        "threshold_backward_grad_input": lambda grad, *_, grad_input: grad,
        "write_back": lambda *_: None,
    }[old]
    assert old in scope
    scope[old] = wrong
    found = _verify(case, module)
    assert not found.ok
    assert found.first_difference is not None
    assert kind in found.first_difference.split(":")[1]
    assert any(equal < count for name, count, equal in found.table() if name == kind)
    assert new is None or kind == "loss"


def test_inputs_are_checked() -> None:
    """No batch is an input error; a wrong batch is the guard's."""
    case, module = _replayed("mlp")
    with pytest.raises(InputError, match="at least one batch"):
        verify(case.model, module, [])
    with pytest.raises(ReplayError, match="shape"):
        verify(case.model, module, [(torch.ones(1, 24),)])


def test_the_loss_must_be_found() -> None:
    """A module that returns no scalar needs `loss_of`."""
    case = make("mlp")
    captured = capture(case.model, case.batch(0))
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    with pytest.raises(InputError, match="loss_of"):
        _verify(case, module)
    assert _verify(case, module, loss_of=lambda out: out.square().mean()).ok


def test_a_loss_in_an_output_is_found() -> None:
    """The loss of a model that returns several things is its `loss`, or its first element."""
    loss = torch.ones((), requires_grad=True)
    for out in (loss, {"loss": loss, "logits": torch.ones(3)}, (loss, torch.ones(3))):
        assert _loss(out) is loss
