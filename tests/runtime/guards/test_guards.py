"""A call that is not the captured one raises one clear line, or runs the plain model."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CheckError, ReplayError
from lowtide.solver.schedule import Schedule

from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Tensor, literal, nested and keyword arguments; dropout; a frozen and a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.a.weight
        self.drop = nn.Dropout(0.5)
        self.b.bias.requires_grad_(False)
        self.register_buffer("scale", torch.ones(4))

    def forward(
        self, x: torch.Tensor, pair: Any, factor: float = 2.0, *, mode: str = "sum", y: Any = None
    ) -> Any:
        """Whatever uses all of them."""
        h = self.tied(self.drop(self.b(self.a(x)))) * factor * self.scale
        h = h + pair[0] + pair[1]["z"]
        if y is not None:
            h = h + y
        return h.sum(0) if mode == "sum" else h.mean(0)


def _x() -> torch.Tensor:
    return torch.ones(3, 4)


@functools.cache
def _shared_module() -> ReplayModule:
    return _replayed((_x(), (_x(), {"z": _x()}), 2.0))


def _module() -> ReplayModule:
    """A module of its own for each test."""
    return copy.deepcopy(_shared_module())


def _replayed(batch: Any) -> ReplayModule:
    torch.manual_seed(0)
    captured = capture(Net(), batch, square)
    return replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


def _call(x: Any = None, pair: Any = None, factor: Any = 2.0, **more: Any) -> tuple[Any, Any]:
    """Arguments like the captured ones, with some exchanged."""
    z = (_x(), {"z": _x()})
    return (_x() if x is None else x, z if pair is None else pair, factor), more


_ARGUMENTS = {
    "shape": (_call(torch.ones(5, 4)), r"argument 0 has shape \[5, 4\]; .*\[3, 4\]"),
    "dtype": (_call(_x().double()), "argument 0 is torch.float64; .* torch.float32"),
    "device": (_call(_x().to("meta")), "argument 0 is on meta; .* cpu"),
    "strides": (_call(torch.ones(4, 3).t()), r"strides \[1, 3\]; .*contiguous"),
    "nested": (_call(None, (_x(), {"z": torch.ones(1)})), r"argument 1 at \[1\]\['z'\] has"),
    "literal": (_call(factor=3.0), "argument 2 is 3.0; .* 2.0"),
    "literal type": (_call(factor=2), "argument 2 is 2; .* 2.0"),
    "not a tensor": (_call(1.0), "argument 0 is 1.0; .* a tensor"),
    "tensor for literal": (_call(factor=_x()), "argument 2 is a tensor"),
    "requires grad": (_call(_x().requires_grad_()), "requires a gradient"),
    "extra keyword": (_call(mode="mean"), "unplanned argument 'mode'"),
    "missing": (((_x(),), {}), "1 positional arguments; .* 3"),
    "structure": (_call(None, [_x(), {"z": _x()}]), r"structure \(\*, \[\*, .*; .*\(\*, \(\*, "),
    "missing key": (_call(None, (_x(), {"w": _x()})), "structure .*'w'.*; .*'z'"),
}


@pytest.mark.parametrize("what", _ARGUMENTS)
def test_arguments(what: str) -> None:
    """Each kind of difference in the arguments is named, with what was planned and what came."""
    (args, kwargs), message = _ARGUMENTS[what]
    module = _module()
    with pytest.raises(ReplayError, match=message) as caught:
        module(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert "capture and solve again" in str(caught.value)


def test_same_call_written_differently() -> None:
    """Positional for keyword, and a default spelled out, are the captured call."""
    module = _module()
    for args, kwargs in (
        ((_x(),), {"pair": (_x(), {"z": _x()}), "factor": 2.0}),
        ((_x(), (_x(), {"z": _x()}), 2.0), {"mode": "sum", "y": None}),
    ):
        torch.manual_seed(1)
        found = module(*args, **kwargs)
        torch.manual_seed(1)
        assert torch.equal(found, module(_x(), (_x(), {"z": _x()}), 2.0))
        assert found.requires_grad


class Rest(nn.Module):
    """Positional arguments without names, after one with a name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *rest: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        """The sum of all."""
        found: torch.Tensor = self.layer(x) + sum(rest)
        return found * factor


def test_arguments_without_names() -> None:
    """They are found in a call that spells out a default, and by `planned_for`."""
    torch.manual_seed(0)
    captured = capture(Rest(), (_x(), _x(), _x()), square)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    assert module.planned_for((_x(), _x(), _x())) is not None
    assert module.planned_for((_x(), _x())) is None
    assert torch.equal(module(_x(), _x(), _x()), module(_x(), _x(), _x(), factor=1.0))


def test_keyword_order_does_not_matter() -> None:
    """Keywords may come in any order."""
    batch = {"x": _x(), "pair": (_x(), {"z": _x()}), "mode": "sum", "y": _x() * 2}
    module = _replayed(batch)
    found = []
    for names in (list(batch), list(batch)[::-1]):
        torch.manual_seed(1)
        found.append(module(**{name: batch[name] for name in names}))
    assert torch.equal(*found)


def test_strides_of_single_elements_do_not_matter() -> None:
    """A dimension of one element may have any stride."""
    torch.manual_seed(0)
    captured = capture(nn.Linear(4, 2), torch.ones(1, 4), square)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    assert module(torch.ones(4, 1).t()).requires_grad


def _good(module: ReplayModule) -> torch.Tensor:
    out: torch.Tensor = module(_x(), (_x(), {"z": _x()}), 2.0)
    return out


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(*shape))


def _turned(module: Any) -> None:
    module.b.weight = nn.Parameter(torch.ones(4, 4).t())


_STATE = {
    "dtype": (lambda m: m.double(), "is .*64.*; the plan was made for float32"),
    "shape": (lambda m: setattr(m.b, "weight", _weight(3, 4)), r"b.weight is float32\[3, 4\]"),
    "strides": (_turned, r"b.weight has strides \[1, 4\]; the plan was made for \[4, 1\]"),
    "unfrozen": (lambda m: m.b.bias.requires_grad_(True), "b.bias requires a gradient now"),
    "untied": (lambda m: setattr(m.tied, "weight", _weight(4, 4)), "two now"),
    "gone": (lambda m: delattr(m, "b"), "module b is gone"),
    "buffer": (lambda m: setattr(m, "scale", torch.ones(1)), r"buffer scale is float32\[1\]"),
    "rate": (lambda m: setattr(m.drop, "p", 0.25), "drop.p is 0.25 and was 0.5 when captured"),
    "bias gone": (lambda m: setattr(m.a, "bias", None), "no parameter a.bias"),
    "one in eval": (lambda m: m.drop.eval(), "drop is in eval mode and was captured in train"),
}


@pytest.mark.parametrize("what", _STATE)
def test_state(what: str) -> None:
    """Each change of the module that invalidates the plan is named."""
    change: Any
    change, message = _STATE[what]
    module = _module()
    _good(module)
    change(module)
    with pytest.raises(ReplayError, match=message):
        _good(module)


def test_new_parameter_values_are_used() -> None:
    """Replacing a parameter by another one of the same look works: names are resolved per call."""
    module = _module()
    module.b.weight = nn.Parameter(torch.full((4, 4), 0.5))
    _good(module).backward()  # type: ignore[no-untyped-call]
    assert module.b.weight.grad is not None


def test_eval_mode_runs_the_plain_model() -> None:
    """In eval mode any shape goes, the loss is applied, and gradients flow through plain ops."""
    module = _module().eval()
    assert not module.training
    assert not module.captured.model.training
    out = module(torch.ones(5, 4), (torch.ones(5, 4), {"z": torch.ones(5, 4)}), 7.0)
    assert out.shape == ()
    assert "Stage" not in type(out.grad_fn).__name__
    assert "Stage" in type(_good(module.train()).grad_fn).__name__


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_off_runs_the_plain_model(context: Any) -> None:
    """Under no_grad and inference_mode the plain model runs, loss included."""
    module = _module()
    with context():
        out = module(torch.ones(5, 4), (torch.ones(5, 4), {"z": torch.ones(5, 4)}), 7.0)
    assert out.shape == ()
    assert not out.requires_grad


def test_captured_in_eval_replays_in_eval() -> None:
    """A step captured in eval mode is replayed in eval mode, and refused in training mode."""
    torch.manual_seed(0)
    captured = capture(Net().eval(), (_x(), (_x(), {"z": _x()}), 2.0), square)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    assert "Stage" in type(_good(module).grad_fn).__name__
    with pytest.raises(ReplayError, match=r"in train mode and was captured in eval mode"):
        _good(module.train())


def test_autocast_must_be_as_captured() -> None:
    """Autocast around a call that was captured without it is refused."""
    module = _module()
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ReplayError, match=r"autocast on cpu is on \(torch.bfloat16\) and was off"),
    ):
        _good(module)


def test_ambient_autocast_is_off_inside() -> None:
    """A step captured under autocast is exact under it, and is refused without it."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.ones(3, 4)

    def cast() -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)

    with cast():
        captured = capture(net, x, square)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    found = []
    for run in (lambda x: square(net(x)), module):
        net.zero_grad()
        with cast():
            loss = run(x)
        loss.backward()
        found.append([loss, *(p.grad for p in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    with pytest.raises(ReplayError, match="autocast on cpu is off and was on"):
        module(x)


def test_plan_of_another_graph_is_refused() -> None:
    """A plan made for another model does not replay."""
    torch.manual_seed(0)
    one = capture(nn.Linear(4, 2), torch.ones(1, 4), square)
    other = capture(nn.Linear(4, 3), torch.ones(1, 4), square)
    with pytest.raises(CheckError, match="another graph"):
        replay(one, plan_of(other.graph, Schedule.keep_everything(other.graph)))


def test_plan_above_its_budget_is_refused() -> None:
    """A plan that would exceed its budget on this step does not replay."""
    torch.manual_seed(0)
    captured = capture(nn.Linear(4, 2), torch.ones(1, 4), square)
    keep = Schedule.keep_everything(captured.graph)
    with pytest.raises(CheckError, match="above its budget"):
        replay(captured, plan_of(captured.graph, keep, budget_bytes=10))
