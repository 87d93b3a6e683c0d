"""Which calls are another kind, and get a plan of their own, and which are refused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.runtime.plans.fit import fit
from lowtide.solver.errors import ReplayError

from ..kinds import all_equal, fit_net, fitted, made_net, one_step, others_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.usefixtures("one_thread", "own_cache", "quick")


def _one_in_eval(module: Any) -> None:
    module.norm.eval()


_KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[], tuple[Any, dict[str, Any]]]]] = {
    "frozen": (lambda m: m.layers[0].requires_grad_(False), lambda: ((rows_of(8),), {})),
    "double": (lambda m: m.double(), lambda: ((rows_of(8).double(),), {})),
    "one in eval": (_one_in_eval, lambda: ((rows_of(8),), {})),
    "more arguments": (lambda m: None, lambda: ((rows_of(8),), {"scale": torch.ones(6)})),
    "by keyword": (lambda m: None, lambda: ((), {"x": rows_of(4), "scale": torch.ones(6)})),
    "strides": (lambda m: None, lambda: ((rows_of(12)[::2],), {})),
    "trained input": (lambda m: None, lambda: ((rows_of(8).requires_grad_(),), {})),
}


@pytest.mark.filterwarnings("ignore:this backward adds to gradients")
@pytest.mark.parametrize("kind", _KINDS)
def test_new_kinds_of_calls_are_planned(kind: str) -> None:
    """Frozen layers, types, modes, arguments: each gets its own plan, and is exact."""
    change, call = _KINDS[kind]
    plain = made_net()
    module = fitted()
    for run in (plain, module):
        change(run)
    for _ in range(2):
        args, kwargs = call()
        assert all_equal(one_step(plain, *args, **kwargs), one_step(module, *args, **kwargs))
    assert len(others_of(module)) == 1


def test_freezing_and_back() -> None:
    """After freeze and unfreeze the first plan serves again; gradients are None while frozen."""
    module = fitted()
    layer: Any = module.layers[0]
    for frozen in (True, False, True):
        layer.requires_grad_(not frozen)
        one_step(module, rows_of(8))
        assert (layer.weight.grad is None) == frozen
    assert len(others_of(module)) == 1
    made = others_of(module)[0].captured.program.gradients
    assert sum(gradient.value is None for gradient in made) == 2


def test_autocast_is_a_kind_of_its_own() -> None:
    """A step under autocast has its own plan."""
    plain = made_net()
    module = fitted()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert all_equal(one_step(plain, rows_of(8)), one_step(module, rows_of(8)))
    assert len(others_of(module)) == 1
    assert all_equal(one_step(plain, rows_of(8)), one_step(module, rows_of(8)))
    assert len(others_of(module)) == 1


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
    module = fitted(policy)
    change(module)
    for count in (8, 5):
        with pytest.raises(ReplayError, match=message):
            module(rows_of(count))
    assert not others_of(module)


def test_untied_weights_are_refused() -> None:
    """Weights that were tied when captured must stay so, for every shape."""
    net = made_net()
    _tie(net)
    module = fit_net(net)
    module.layers[1].weight = nn.Parameter(torch.ones(6, 6))
    with pytest.raises(ReplayError, match="were one tensor when captured and are two now"):
        module(rows_of(5))


def test_a_changing_number_is_refused() -> None:
    """A number is planned if asked for, not each time that another one comes."""
    module = fit(made_net(), (rows_of(8), None, 1), memory_budget="1MiB", times="roofline")
    with pytest.raises(ReplayError, match="argument 2 is 2, a number that no plan was made for"):
        module(rows_of(8), None, 2)
    assert not others_of(module)
    module.prepare((rows_of(8), None, 2))
    plain = copy.deepcopy(module.captured.model)
    assert all_equal(one_step(plain, rows_of(8), None, 2), one_step(module, rows_of(8), None, 2))
    with pytest.raises(ReplayError, match="argument 2 is 3"):
        module(rows_of(5), None, 3)
    module(rows_of(5), None, 2)
    assert len(others_of(module)) == 2
