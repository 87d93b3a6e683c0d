"""Forward-mode AD and `torch.func` transforms are refused where the plain model does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad as _forward_ad

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

forward_ad: Any = _forward_ad
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PyTorch itself warns when it loads its forward-mode decompositions.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning"),
]


def _replayed() -> tuple[ReplayModule, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), x, square)
    keep = Schedule.keep_everything(captured.graph)
    return replay(captured, plan_of(captured.graph, keep)), x


def test_dual_input_is_refused() -> None:
    """A forward-mode tangent is not dropped; without one, a dual level changes nothing."""
    module, x = _replayed()
    with forward_ad.dual_level():
        assert module(x).requires_grad
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(ReplayError, match=r"input 0 is a dual tensor of forward-mode AD"):
            module(dual)
        with torch.no_grad():
            assert forward_ad.unpack_dual(module(dual)).tangent is not None


def test_dual_parameter_is_refused() -> None:
    """So is one that arrives by a parameter, which is named."""
    module, x = _replayed()
    state = {name: p.detach() for name, p in module.named_parameters()}
    with forward_ad.dual_level():
        state["0.bias"] = forward_ad.make_dual(state["0.bias"], torch.ones(4))
        with pytest.raises(ReplayError, match=r"0\.bias is a dual tensor"):
            torch.func.functional_call(module, state, (x,))


def _grad(module: Any, x: torch.Tensor) -> Any:
    return torch.func.grad(module)(x)


def _jvp(module: Any, x: torch.Tensor) -> Any:
    return torch.func.jvp(module, (x,), (x,))


def _vmap(module: Any, x: torch.Tensor) -> Any:
    return torch.func.vmap(module)(x.expand(2, 3, 4))


@pytest.mark.parametrize("transform", [_grad, _jvp, _vmap])
def test_function_transforms_are_refused(transform: Callable[..., Any]) -> None:
    """One clear line for each transform; in eval mode the plain model runs under it."""
    module, x = _replayed()
    with pytest.raises(ReplayError, match=r"torch\.func transform .*original model"):
        transform(module, x)
    model = module.eval().captured.model
    found, wanted = transform(module, x), transform(lambda x: square(model(x)), x)
    torch.testing.assert_close(found, wanted)


def _at_once(loss: Any, weight: Any) -> Any:
    return torch.autograd.grad(loss, [weight], torch.tensor([1.0, 2.0]), is_grads_batched=True)


def _by_hand(loss: Any, weight: Any) -> Any:
    def one(gradient: torch.Tensor) -> Any:
        return torch.autograd.grad(loss, [weight], gradient, retain_graph=True)

    return torch.func.vmap(one)(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("backward", [_at_once, _by_hand])
def test_several_gradients_at_once_are_refused(backward: Callable[..., Any]) -> None:
    """One clear line, and one gradient after the other works afterwards."""
    module, x = _replayed()
    weight: Any = next(module.parameters())
    loss = module(x)
    with pytest.raises(ReplayError, match="several gradients of its outputs at once"):
        backward(loss, weight)
    found = torch.autograd.grad(loss, [weight], torch.tensor(2.0))
    wanted = torch.autograd.grad(square(module.captured.model(x)), [weight], torch.tensor(2.0))
    assert torch.equal(found[0], wanted[0])
