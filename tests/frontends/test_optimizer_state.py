"""State of optimizers, foretold before it exists: equal to what a step really leaves."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.frontends.torch.optimizer_state import NAMED, NOT_FORETOLD
from lowtide.solver.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "adamw fused": partial(torch.optim.AdamW, fused=True),
    "adamw foreach": partial(torch.optim.AdamW, foreach=True),
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "sgd nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "rmsprop": partial(torch.optim.RMSprop, centered=True, momentum=0.5),
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "adafactor": torch.optim.Adafactor,
}

_FAST = ("adam amsgrad", "adamw fused", "sgd nesterov", "rmsprop", "adagrad", "adafactor")
_FAST_NAMES = ("adamw", "sgd", "sgd-momentum", "adafactor", "muon")


def _model() -> nn.Module:
    """Matrices, vectors, a half-precision island, a frozen and an unused parameter."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
            self.c = nn.Linear(8, 3).to(torch.bfloat16)
            self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
            self.unused = nn.Parameter(torch.ones(5))

        def forward(self, x: torch.Tensor) -> Any:
            h = self.b(torch.tanh(self.a(x))) * self.frozen
            return self.c(h.to(torch.bfloat16)).float().square().mean()

    torch.manual_seed(0)
    return Net()


def _captured_bytes(model: nn.Module, optimizer: Any) -> int:
    plain = lowtide.capture(model, torch.ones(4, 6), times="none").graph.resident_bytes
    with_state = lowtide.capture(model, torch.ones(4, 6), times="none", optimizer=optimizer)
    return with_state.graph.resident_bytes - plain


def _real_bytes(optimizer: torch.optim.Optimizer, model: nn.Module) -> int:
    """Bytes of all tensors of the state after a step."""
    loss: Any = model(torch.ones(4, 6))
    loss.backward()
    optimizer.step()
    seen = []
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                seen.append(value.untyped_storage().nbytes())
    return sum(seen)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in _FAST else pytest.mark.slow) for n in _OPTIMIZERS],
)
def test_foretold_state_is_real_state(name: str) -> None:
    """As a class with settings, as an instance, and as one that has stepped already."""
    make = _OPTIMIZERS[name]
    model = _model()
    twin = copy.deepcopy(model)
    expected = _real_bytes(make(twin.parameters()), twin)
    assert _captured_bytes(model, make) == expected
    optimizer = make(model.parameters())
    before = len(optimizer.state)
    assert _captured_bytes(model, optimizer) == expected
    assert len(optimizer.state) == before
    assert all(p.grad is None for p in model.parameters())
    assert _real_bytes(optimizer, model) == expected
    model.zero_grad()
    assert _captured_bytes(model, optimizer) == expected


class _Matrices(nn.Module):
    """No parameter but matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in _FAST_NAMES else pytest.mark.slow) for n in NAMED]
)
def test_names(name: str) -> None:
    """Names mean the classes of PyTorch with their usual settings."""
    model = _Matrices() if name == "muon" else _model()
    twin = copy.deepcopy(model)
    expected = _real_bytes(NAMED[name](twin.parameters()), twin)
    assert _captured_bytes(model, name) == expected


def test_every_optimizer_of_pytorch_has_its_name() -> None:
    """Those of the installed version; two are refused with their own reasons."""
    made = [vars(torch.optim).get(name) for name in torch.optim.__all__]
    kinds = {k.__name__.lower() for k in made if isinstance(k, type)} - {"optimizer"}
    assert kinds >= {"adafactor", "sparseadam", "lbfgs", "sgd"}
    assert kinds == {*NAMED, *NOT_FORETOLD} - {"sgd-momentum"}
    model = _model()
    assert _captured_bytes(model, " AdaFactor ") == _captured_bytes(model, torch.optim.Adafactor)


def test_groups_and_several_optimizers() -> None:
    """Settings count per group; a list of optimizers counts each, schedulers do not matter."""
    model: Any = _model()
    one = torch.optim.SGD(
        [
            {"params": model.a.parameters(), "momentum": 0.9},
            {"params": model.b.parameters()},
        ],
        lr=0.1,
    )
    torch.optim.lr_scheduler.StepLR(one, 1)
    two = torch.optim.AdamW(model.c.parameters())
    expected = sum(p.nbytes for p in model.a.parameters())
    expected += sum(2 * p.nbytes + 4 for p in model.c.parameters())
    assert _captured_bytes(model, [one, two]) == expected
    document = lowtide.capture(model, torch.ones(4, 6), times="none", optimizer=[one, two])
    assert document.graph.meta["optimizer_bytes"] == str(expected)


def test_hooks_and_random_state_stay() -> None:
    """Foretelling runs no hook of the optimizer and draws no random numbers."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    calls: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    before = torch.get_rng_state()
    assert _captured_bytes(model, optimizer) > 0
    assert not calls
    assert torch.equal(before, torch.get_rng_state())


class _Odd(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        """Fails."""
        raise RuntimeError("no step without a closure")


def test_what_cannot_be_foretold_is_refused_by_name() -> None:
    """One line that says what to do."""
    model, other = _model(), _model()
    cases: list[tuple[Any, str]] = [
        ("adamm", "unknown optimizer 'adamm': use one of adadelta, .*sgd-momentum, or give"),
        ("lbfgs", "LBFGS .* extra_resident_bytes"),
        ("sparseadam", "SparseAdam needs sparse gradients"),
        ("muon", "Muon cannot be made of all parameters alone: .*2D.*; give .*a list"),
        (torch.optim.LBFGS(model.parameters()), "LBFGS .* extra_resident_bytes"),
        (torch.optim.LBFGS, "LBFGS .* extra_resident_bytes"),
        (torch.optim.SparseAdam, "SparseAdam needs sparse gradients"),
        (torch.optim.AdamW(other.parameters()), "no parameter of this model"),
        (_Odd(model.parameters()), "what _Odd keeps cannot be foretold .no step"),
        (3, "optimizer is an int"),
        ([3], "holds an int"),
        (lambda parameters: parameters, "makes a list"),
        (lambda: None, "cannot be made of all parameters alone"),
    ]
    for optimizer, message in cases:
        with pytest.raises(InputError, match=message):
            lowtide.capture(model, torch.ones(4, 6), times="none", optimizer=optimizer)
