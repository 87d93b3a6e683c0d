"""`verify` finds what is wrong, and leaves everything as it was."""

from __future__ import annotations

import json
import math
import random
import re
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.parity.verify import Verification, scalar_loss, verify
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import InputError, ReplayError
from lowtide.solver.schedule import Schedule
from lowtide.solver.solve import solve

from ..models import Case, fresh, make
from ..schedules import plan_of, random_schedule

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


@pytest.mark.parametrize("sizes", [(8, 32, 32, 3), (3, 8, 32)])
def test_measured_is_the_batch_that_takes_the_most(sizes: tuple[int, ...]) -> None:
    """Of several kinds of call the one with the largest plain peak is shown, and it is said."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16))
    batches = [(torch.randn(size, 16),) for size in sizes]
    module = fit(
        model, batches[0], memory_budget="1MiB", times="roofline",
        loss_fn=lambda out: out.square().mean(), shapes=batches[1:],
    )  # fmt: skip
    found = verify(model, module, batches, repeats=1)
    alone = verify(model, module, [batches[sizes.index(32)]], repeats=1)
    assert found.ok
    assert (found.step, found.steps, found.kinds) == (sizes.index(32), len(sizes), 3)
    assert found.plain_peak_bytes == alone.plain_peak_bytes
    assert found.replay_peak_bytes == alone.replay_peak_bytes
    assert found.predicted_peak_bytes == alone.predicted_peak_bytes
    words = rf"measured +batch {found.step + 1} of {len(sizes)} +largest plain peak of 3 kinds"
    assert re.search(words, str(found))
    assert re.search(r"measured +batch 1 of 1\n", str(alone))
    assert found.document()["step"] == found.step


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("relu_", "sigmoid", "loss"),
        ("threshold_backward_grad_input", None, "gradient"),
        ("add__Tensor", None, "buffer"),
    ],
)
def test_a_wrong_program_is_found(old: str, new: str | None, kind: str) -> None:
    """A wrong op in forward, in backward, or a counter that stands still is reported by kind."""
    case, module = _replayed("cnn")
    code = module._wiring.code
    scope = (code.backward if old.startswith("threshold_backward") else code.forward).__globals__
    aten: Any = torch.ops.aten
    wrong: Any = {
        "relu_": lambda x: aten.sigmoid(x),
        "threshold_backward_grad_input": lambda grad, *_, grad_input: grad,
        "add__Tensor": lambda x, y: x if type(y) is int else aten.add_.Tensor(x, y),
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


def test_batches_keep_their_strides() -> None:
    """Columns of a larger tensor, and one row for all, are copied as they lie in memory."""
    model = torch.nn.Linear(4, 4)
    for batch in (torch.randn(3, 9)[:, 2:6], torch.randn(1, 4).expand(3, 4), torch.randn(4, 3).t()):
        captured = capture(model, batch, lambda out: out.square().mean(), times="none")
        keep = Schedule.keep_everything(captured.graph)
        found = verify(model, replay(captured, plan_of(captured.graph, keep)), [batch], repeats=1)
        assert found.ok, found.first_difference


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
        assert scalar_loss(out) is loss


def test_gradients_and_optimizer_of_the_caller_stay() -> None:
    """A verification in the middle of training changes nothing of it."""
    case, module = _replayed("mlp")
    optimizer = torch.optim.AdamW(module.parameters())
    module(*case.batch(0)).backward()
    optimizer.step()
    gradients = [(p.grad, p.grad.clone()) for p in module.parameters() if p.grad is not None]
    assert gradients
    state = [v.clone() for s in optimizer.state.values() for v in s.values()]
    random.seed(1)
    drawn = random.getstate()
    assert _verify(case, module).ok
    assert next(p.grad for p in module.parameters()) is gradients[0][0]
    assert all(torch.equal(now, before) for now, before in gradients)
    now = [v for s in optimizer.state.values() for v in s.values()]
    assert all(map(torch.equal, now, state))
    assert random.getstate() == drawn


def test_report() -> None:
    """The table says what was compared, the peaks beside the prediction and the budget, times."""
    case, module = _replayed("mlp")
    found = verify(case.model, module, [case.batch(0), case.batch(1)], repeats=2)
    text = str(found)
    for words in ("gradient", "random state", "first difference  none", "budget", "predicted"):
        assert words in text
    document = json.loads(json.dumps(found.document()))
    assert document["equal"] is True
    assert document["differences"] == []
    assert {"kind": "loss", "count": 2, "equal": 2} in document["compared"]
    graph, plan = module.captured.graph, module.plan
    assert document["budget_bytes"] == plan.budget_bytes
    assert document["predicted_peak_bytes"] == plan.peak_bytes
    assert document["measured_peak_bytes"] == found.replay_peak_bytes + graph.resident_bytes
    assert found.measured_overhead == document["measured_overhead"] > -1
    assert document["predicted_overhead"] == plan.overhead == 0


def test_report_without_measurements_and_with_a_difference() -> None:
    """What was not measured is null; differences are listed, the first one in the text."""
    case, module = _replayed("mlp")
    scope = module._wiring.code.forward.__globals__
    gelu = scope["gelu"]
    scope["gelu"] = lambda *words, **more: gelu(*words, **more) * 2
    found = _verify(case, module)
    assert not found.ok
    assert str(found.first_difference) in str(found)
    assert "budget" not in str(found)
    document = found.document()
    assert document["measured_peak_bytes"] is None
    assert document["seconds"] is None
    assert math.isnan(found.measured_overhead)
    assert len(document["differences"]) == sum(not item.equal for item in found.items)
    assert document["first_difference"].startswith("step 0: loss: largest difference")


def _wrong(function: Any, called: list[Any]) -> Any:
    """The op with results that are off: numbers scaled, masks turned around; notes its calls."""

    def spoil(result: Any) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(map(spoil, result))
        if not isinstance(result, torch.Tensor):
            return result
        if result.is_floating_point():
            return result * 1.25
        if result.dtype is torch.bool:
            return ~result
        return result + 1 if result.dim() == 0 else result  # indices must stay valid

    def wrong(*words: Any, **more: Any) -> Any:
        called.append(function)
        return spoil(function(*words, **more))

    return wrong


def test_every_wrong_op_is_found() -> None:
    """Each op of forward and backward in turn computes something else: always reported."""
    case, captured = fresh("cnn")
    schedule = random_schedule(captured.graph, random.Random(4))
    module = replay(captured, plan_of(captured.graph, schedule))
    code = module._wiring.code
    scope = code.forward.__globals__
    assert code.backward.__globals__ is scope
    operators = {
        name: value
        for name, value in scope.items()
        if type(value).__name__ in ("builtin_function_or_method", "method_descriptor")
        and f"{name}(" in code.source
        and name not in ("write_back", "count_versions")  # their results are not read
    }
    ran = 0
    for name, right in operators.items():
        called: list[Any] = []
        scope[name] = _wrong(right, called)
        found = verify(case.model, module, [case.batch(0)], measure=False)
        scope[name] = right
        assert found.ok is not bool(called), name
        ran += bool(called)
    assert ran >= 18
    assert _verify(case, module).ok


def test_dropout_drawn_anew_is_found() -> None:
    """A recomputation that draws another mask changes gradients: a wrong plan, not a wrong op."""
    case, captured = fresh("mlp")
    for seed in range(20):
        schedule = random_schedule(captured.graph, random.Random(seed), drop=0.6)
        module: Any = replay(captured, plan_of(captured.graph, schedule))
        if "set_state(" in module.code:
            break
    code = module._wiring.code
    assert code.forward.__globals__["set_state"]
    code.forward.__globals__["set_state"] = lambda *_: None
    found = _verify(case, module)
    assert not found.ok
    assert "random state" in {item.kind for item in found.items if not item.equal}


class _Itself(nn.Sequential):
    """Its copy is the model itself."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Itself:
        return self


@pytest.mark.parametrize("itself", [True, False])
def test_a_copy_that_would_train_the_original_is_refused(itself: bool) -> None:
    """By name, and before anything is changed."""
    kind = _Itself if itself else nn.Sequential
    model = kind(nn.Linear(4, 4), nn.BatchNorm1d(4))
    weights = [*model.parameters()]

    def decayed(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean() + (0 if itself else sum(w.square().sum() for w in weights))

    batch = torch.randn(8, 4)
    captured = capture(model, batch, decayed, times="roofline")
    module = replay(captured, solve(captured.graph, "max"))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(InputError, match=r"would change the original: its step uses 0\.weight"):
        verify(model, module, [batch])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(weight.grad is None for weight in weights)


def test_what_a_loss_writes_outside_is_put_back() -> None:
    """Both runs begin with it, and the caller finds it as it was."""
    mean = torch.zeros(4)

    def centred(out: torch.Tensor) -> torch.Tensor:
        mean.mul_(0.5).add_(out.detach().mean(0))
        return (out - mean).square().mean()

    model, batch = nn.Linear(4, 4), torch.randn(8, 4)
    captured = capture(model, batch, centred, times="roofline")
    module = replay(captured, solve(captured.graph, "max"))
    assert verify(model, module, [batch, batch]).ok
    assert torch.equal(mean, torch.zeros(4))
