"""Nothing from outside of the modules is baked in: it is read anew, or its change is refused."""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError

from ...frontends.models import Lambda, rows
from ...plans import recomputing
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")
TARGET = torch.zeros(3, 4)
SCALE = 1.0


def replayed(model: nn.Module, loss: Any) -> ReplayModule:
    """With much recomputation."""
    captured = capture(model, rows(), loss, times="none")
    return replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))


def same(module: ReplayModule, model: nn.Module, loss: Callable[..., Any]) -> bool:
    """Whether loss and gradients are the plain ones now."""
    a, b = module(rows()), loss(model(rows()))
    weights = list(model.parameters())
    gradients = [torch.autograd.grad(x, weights, allow_unused=True) for x in (a, b)]
    pairs = zip(*gradients, strict=True)
    return torch.equal(a, b) and all(x is y or torch.equal(x, y) for x, y in pairs)


def test_a_loss_reads_the_tensors_that_its_closure_holds_now() -> None:
    """Labels that are bound anew in each step, by closure, global, default or container."""
    target, weight, kept = torch.zeros(3, 4), torch.ones(4), {"bias": [torch.zeros(4)]}

    def inner(out: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(out * weight, target)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return inner(out) + F.l1_loss(out + kept["bias"][0], TARGET)

    model = nn.Linear(4, 4)
    module = replayed(model, loss)
    assert same(module, model, loss)
    for step in range(3):
        target, weight = torch.randn(3, 4), torch.full((4,), 2.0 + step)
        kept["bias"] = [torch.full((4,), float(step))]
        globals()["TARGET"] = torch.randn(3, 4)
        assert same(module, model, loss)
    target = torch.zeros(4)
    with pytest.raises(ReplayError, match=r"tensor target of inner of the loss is float32\[4\]"):
        module(rows())


def test_numbers_that_a_loss_reads_are_guarded() -> None:
    """A factor that changes over training is a constant of the plan, and noticed."""
    factor = 0.5

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean() * factor * SCALE

    module = replayed(nn.Linear(4, 4), loss)
    module(rows())
    factor = 0.25
    with pytest.raises(ReplayError, match=r"factor of the loss is 0\.25 and was 0\.5"):
        module(rows())
    factor = 0.5
    globals()["SCALE"] = 2.0
    try:
        with pytest.raises(ReplayError, match=r"global SCALE of the loss is 2\.0 and was 1\.0"):
            module(rows())
    finally:
        globals()["SCALE"] = 1.0
    module(rows())


def test_partials_methods_and_objects_are_looked_into() -> None:
    """A loss may be a partial, a method of an object, or use a module that is not registered."""
    teacher = nn.Linear(4, 4).requires_grad_(False)

    class Loss:
        def __init__(self) -> None:
            self.settings = SimpleNamespace(target=torch.zeros(3, 4))

        def __call__(self, out: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(out, self.settings.target)

        def method(self, out: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self(out) * scale + F.mse_loss(out, teacher(out))

    holder = Loss()
    scale = torch.tensor(2.0)
    loss = functools.partial(holder.method, scale=scale)
    model = nn.Linear(4, 4)
    module = replayed(model, loss)
    holder.settings.target = torch.ones(3, 4)
    scale.fill_(3.0)
    teacher.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)
    assert same(module, model, loss)
    holder.settings = SimpleNamespace()
    with pytest.raises(ReplayError, match=r"was a tensor when captured and is none now"):
        module(rows())


def test_tensors_in_containers_of_modules_are_read() -> None:
    """Also in copies of the module, each its own."""

    def body(self: Any, x: torch.Tensor) -> Any:
        return (self.lin(x) * self.bag["scales"][1]).square().mean()

    model = Lambda(body)
    model.__dict__["bag"] = {"scales": [None, torch.ones(4)]}
    module = replayed(model, None)
    twin = copy.deepcopy(module)
    twin._wrapped.bag["scales"][1] = torch.full((4,), 3.0)
    assert torch.equal(twin(rows()), twin._wrapped(rows()))
    assert torch.equal(module(rows()), model(rows()))
    assert not torch.equal(twin(rows()), module(rows()))


def test_another_function_is_noticed() -> None:
    """An activation that a module holds as a plain function is part of the plan."""
    model = Lambda(lambda self, x: self.act(self.lin(x)).sum())
    model.__dict__["act"] = torch.tanh
    module = replayed(model, None)
    module(rows())
    model.__dict__["act"] = torch.sigmoid
    with pytest.raises(ReplayError, match="act is another function than it was"):
        module(rows())


def test_a_tensor_that_cannot_be_found_again_is_refused() -> None:
    """One that a weak reference leads to, for instance, or that an iterator hands out."""
    tensor = torch.ones(4)
    hidden, tensors = weakref.ref(tensor), itertools.cycle([tensor])
    with pytest.raises(CaptureError, match="cannot be found again"):
        capture(nn.Linear(4, 4), rows(), lambda out: (out * hidden()).sum(), times="none")
    with pytest.raises(CaptureError, match="asks the iterator tensors of the loss"):
        capture(nn.Linear(4, 4), rows(), lambda out: (out * next(tensors)).sum(), times="none")
