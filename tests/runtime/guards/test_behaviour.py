"""Modules that behave differently since capture are refused by path, and copies are not."""

from __future__ import annotations

import copy
import pickle
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError
from lowtide.solver.schedule import Schedule

from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """A chain with a number and a plain tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.scale = 2.0
        self.shift = torch.full((4,), 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled and shifted."""
        out: torch.Tensor = self.body(x) * self.scale
        return out + self.shift


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _captured(model: nn.Module | None = None, **options: Any) -> Captured:
    torch.manual_seed(0)
    return capture(Net() if model is None else model, X, square, **options)


def _replayed(model: nn.Module | None = None, **options: Any) -> ReplayModule:
    captured = _captured(model, **options)
    return replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


def _double(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _other_forward(child: Any) -> None:
    child.forward = types.MethodType(_double, child)


def _function_forward(child: Any) -> None:
    child.forward = lambda x: x * 2


def _other_class(child: nn.Module) -> None:
    child.__class__ = type("Other", (type(child),), {"forward": _double})


_CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "forward hook": (lambda m: m.register_forward_hook(lambda *_: None), "forward hook"),
    "pre-hook": (lambda m: m.register_forward_pre_hook(lambda *_: None), "forward pre-hook"),
    "backward hook": (lambda m: m.register_full_backward_hook(lambda *_: None), "backward hook"),
    "backward pre-hook": (
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
        "backward pre-hook",
    ),
    "method": (_other_forward, "another forward"),
    "function": (_function_forward, "another forward"),
    "class": (_other_class, r"is an Other and was a \w+"),
    "child": (lambda m: m.add_module("more", nn.Tanh()), r"has \d children and had \d"),
}


@pytest.mark.parametrize("path", ["", "body", "body.1"])
@pytest.mark.parametrize("change", _CHANGES)
def test_change_after_capture_is_refused(change: str, path: str) -> None:
    """Each change of what a module does raises one line that names the module."""
    module = _replayed()
    module(X)
    act, words = _CHANGES[change]
    act(module.captured.model.get_submodule(path))
    where = f"module {path} " if path else "the module "
    with pytest.raises(ReplayError, match=f"{where}.*{words}|{words}.*{where}") as caught:
        module(X)
    assert "capture and solve again" in str(caught.value)


@pytest.mark.parametrize("change", _CHANGES)
def test_change_between_capture_and_replay_is_refused(change: str) -> None:
    """The module counts as it was when captured, not as it is when the plan comes."""
    captured = _captured()
    act, words = _CHANGES[change]
    act(captured.model.get_submodule("body.1"))
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    with pytest.raises(ReplayError, match=words):
        module(X)


def test_tensor_exchanged_between_capture_and_replay_is_read() -> None:
    """A plain tensor of a module is read when it is called, whenever it was set."""
    captured = _captured()
    model: Any = captured.model
    model.shift = torch.full((4,), 1.5)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    assert torch.equal(module(X), square(model(X)))


def test_exchanged_child_is_refused() -> None:
    """A child of another class, in the place of a captured one, is refused by its path."""
    module = _replayed()
    module.body[1] = nn.ReLU()
    with pytest.raises(ReplayError, match=r"module body\.1 is a ReLU and was a Tanh"):
        module(X)


def test_exchanged_class_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `forward` exchanged in the class counts for all its modules."""
    module = _replayed()
    monkeypatch.setattr(nn.Tanh, "forward", _double)
    with pytest.raises(ReplayError, match=r"class of module body\.1 has another forward"):
        module(X)


def test_removed_hook_passes_again() -> None:
    """A hook that was removed, and a forward put back as a bound method, are no difference."""
    module = _replayed()
    child = module.body[0]
    child.register_forward_hook(lambda *_: None).remove()
    child.forward = child.forward
    module(X).backward()
    assert child.weight.grad is not None


def test_traced_hook_must_stay() -> None:
    """A hook that was traced into the step replays, and its removal is refused."""
    model = Net()
    handle = model.body[0].register_forward_hook(lambda _, __, out: out * 3)
    module = _replayed(model, trace_hooks=True)
    assert torch.equal(module(X), square(model(X)))
    handle.remove()
    with pytest.raises(ReplayError, match=r"module body\.0 has lost a forward hook"):
        module(X)


def test_hooks_on_the_outside_and_in_eval_mode_work() -> None:
    """Hooks of the replaying module itself run, and inner ones do where the plain model runs."""
    module, seen = _replayed(), []
    module.register_forward_hook(lambda *_: seen.append("outer"))
    module(X)
    module.body.register_forward_hook(lambda *_: seen.append("inner"))
    with torch.no_grad():
        module(X)
    module.eval()(X)
    assert seen == ["outer", "inner", "outer", "inner", "outer"]


def test_number_set_on_the_outside_reaches_the_model() -> None:
    """Setting and deleting reaches the wrapped module; private news stay outside."""
    module = _replayed()
    model: Any = module.captured.model
    module.scale = 5.0
    assert model.scale == 5.0
    with pytest.raises(ReplayError, match=r"scale is 5\.0 and was 2\.0 when captured"):
        module(X)
    with torch.no_grad():
        assert torch.equal(module(X), square(model(X)))
    module.scale = 2.0
    module(X)
    module.note = "for the model"
    assert model.note == "for the model"
    module._note = "of a library"
    assert not hasattr(model, "_note")
    assert module._note == "of a library"
    del module.scale
    assert not hasattr(model, "scale")


def test_plain_tensor_of_a_module_is_read_when_called() -> None:
    """An exchanged tensor attribute counts in the next step; one of another shape is refused."""
    module = _replayed()
    model: Any = module.captured.model
    module.shift = torch.arange(4.0)
    assert model.shift is module.shift
    assert torch.equal(module(X), square(model(X)))
    for tensor, words in (
        (torch.zeros(1), r"tensor shift is float32\[1\]"),
        (torch.zeros(4, requires_grad=True), "tensor shift requires a gradient now"),
        (None, "shift was a tensor when captured and is none now"),
    ):
        model.shift = tensor
        with pytest.raises(ReplayError, match=words):
            module(X)


def _pickled(module: Any) -> Any:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize(
    ("how", "trace"), [(copy.deepcopy, False), (copy.deepcopy, True), (_pickled, False)]
)
def test_copies_are_no_difference(how: Callable[[Any], Any], trace: bool) -> None:
    """Deep copies and unpickled ones replay, also of modules whose class is made per copy."""
    module = _replayed(torch.fx.symbolic_trace(Net()) if trace else None)
    again = how(module)
    assert torch.equal(again(X), module(X))
    again.captured.model.get_submodule("body").register_forward_hook(lambda *_: None)
    with pytest.raises(ReplayError, match="module body has got a forward hook"):
        again(X)
    module(X)


@pytest.mark.parametrize("kind", ["forward_pre", "forward", "full_backward", "full_backward_pre"])
def test_a_hook_on_all_modules_is_refused(kind: str) -> None:
    """It would not run: before capture, and after it until it is removed."""
    module = _replayed()
    register = getattr(torch.nn.modules.module, f"register_module_{kind}_hook")
    handle = register(lambda *_: None)
    words = "backward" if "backward" in kind else "forward"
    try:
        with pytest.raises(ReplayError, match=rf"a {words} (pre-)?hook is registered on all mod"):
            module(X)
        with pytest.raises(CaptureError, match=rf"a {words} (pre-)?hook is registered on all mod"):
            _captured()
    finally:
        handle.remove()
    module(X)
