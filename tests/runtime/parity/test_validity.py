"""Checks of arguments in PyTorch's own code are followed, and raise in replays as well."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay

from ...frontends.models import Lambda, rows
from ...plans import recomputing
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

D: Any = torch.distributions
pytestmark = pytest.mark.usefixtures("one_thread", "checks_on")


@pytest.fixture
def checks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process: `torch.compile` in an earlier test has switched them off for good."""
    monkeypatch.setattr(D.Distribution, "_validate_args", True)


def vae(self: Any, x: torch.Tensor) -> Any:
    """Latents of a normal distribution, and how probable they are."""
    code = D.Normal(self.lin(x), F.softplus(x @ self.weight) + 0.1)
    latent = code.rsample()
    prior = D.Normal(torch.zeros_like(latent), torch.ones_like(latent))
    return (code.log_prob(latent) - prior.log_prob(latent)).mean()


def policy(self: Any, x: torch.Tensor) -> Any:
    """Chosen actions, and the entropy of the choice."""
    choice = D.Categorical(logits=self.lin(x))
    return -choice.log_prob(choice.sample()).mean() - choice.entropy().mean()


def squashed(self: Any, x: torch.Tensor) -> Any:
    """Actions in an interval."""
    base = D.Independent(D.Normal(self.lin(x), 1.0), 1)
    moved = D.TransformedDistribution(base, [D.TanhTransform(cache_size=1)])
    return moved.log_prob(moved.rsample()).mean()


def gammas(self: Any, x: torch.Tensor) -> Any:
    """Distributions that are made of others, which check their own arguments."""
    positive = F.softplus(self.lin(x)) + 0.5
    covariance = torch.eye(4) + 0.01 * (self.weight @ self.weight.T)
    together = D.MultivariateNormal(x @ self.weight, covariance).rsample().tanh()
    return (
        D.StudentT(positive).rsample().tanh() * D.Dirichlet(positive).rsample() * together
    ).sum()


def likelihood(self: Any, x: torch.Tensor) -> Any:
    """A loss that looks for negative variances."""
    return F.gaussian_nll_loss(self.lin(x), x, (x @ self.weight).exp())


BODIES = [vae, policy, squashed, gammas, likelihood]


def replayed(body: Callable[..., Any]) -> tuple[Any, Any]:
    """A model, and another one that is replayed with much recomputation."""
    torch.manual_seed(0)
    model = Lambda(body)
    captured = capture(copy.deepcopy(model), rows(), times="none")
    return model, replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))


def step_of(module: Any, x: torch.Tensor) -> list[Any]:
    """Loss, gradients and random state of a step."""
    torch.manual_seed(7)
    module.zero_grad()
    loss = module(x)
    loss.backward()
    gradients = [p.grad for p in module.parameters()]
    return [loss.detach(), *gradients, torch.get_rng_state()]


@pytest.mark.parametrize("body", BODIES)
def test_steps_with_checks_are_exact(body: Callable[..., Any]) -> None:
    """Valid arguments: nothing is different, and the checks are asked again in each step."""
    model, module = replayed(body)
    for shift in range(2):
        expected, found = step_of(model, rows() + shift), step_of(module, rows() + shift)
        for a, b in zip(expected, found, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("body", BODIES[:4])
def test_what_is_not_valid_raises_as_it_would(body: Callable[..., Any]) -> None:
    """The same kind of error, at the user's line; the next step goes on."""
    model, module = replayed(body)
    for subject in (model, module):
        with pytest.raises(ValueError, match="found invalid values"):
            subject(rows() * torch.nan)
    with pytest.raises(ValueError, match=r"test_validity\.py:\d+ .*found invalid values"):
        module(rows() * torch.nan)
    assert torch.isfinite(module(rows()))


def test_a_negative_variance_raises() -> None:
    """The loss that wants no negative variance gets none."""

    def body(self: Any, x: torch.Tensor) -> Any:
        return F.gaussian_nll_loss(self.lin(x), x, x.square() * self.one)

    model, module = replayed(body)
    for subject in (model, module):
        subject.one.fill_(-1.0)
        with pytest.raises(ValueError, match="var"):
            subject(rows())
