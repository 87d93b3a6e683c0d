"""What models do that tools like this one get wrong: several steps with much recomputation, exact.

Each kind trains by a plan that runs every forward op again that backward needs, and by one that
drops at random; compared are losses, gradients, buffers, inputs and the random state. The measured
peak of a step is the one that the plan predicts, to the byte.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils import _pytree as pytree

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError

from ...frontends import models
from ...frontends.models import Lambda, Made
from ...plans import recomputing
from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.solver.schedule import Schedule

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(seed: int = 1) -> torch.Tensor:
    """Three rows."""
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def square(out: torch.Tensor) -> torch.Tensor:
    """Mean square of anything."""
    return out.float().square().mean()


def cumulative_norm() -> Made:
    """Batch norm with a cumulative average, with and without a scale, one of them used twice."""
    a, b = (nn.BatchNorm1d(4, momentum=None, affine=affine) for affine in (True, False))
    model = Lambda(lambda self, x: self.a(self.b(self.a(self.lin(x))).sin()), a=a, b=b)
    return model, rows(), square


def cumulative_norm_frozen() -> Made:
    """The same in evaluation mode: it reads its statistics and counts nothing."""
    norm = nn.BatchNorm1d(4, momentum=None).eval()
    model = Lambda(lambda self, x: self.a(self.lin(x)), a=norm)
    return model, rows(), square


def counters() -> Made:
    """A counter and a moving average that are read before they are written."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x) * self.one.clone() + self.count
        self.one.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.count += 1
        return h.sin() * self.one / self.count

    model = Lambda(body)
    model.register_buffer("count", torch.tensor(0))
    return model, rows(), square


def cast_twice() -> Made:
    """A weight that autocast casts once and uses twice, around a part in full precision."""

    def body(self: Any, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.tanh(self.lin(self.lin(x))) @ self.weight
            with torch.autocast("cpu", enabled=False):
                h = F.layer_norm(h.float() @ self.weight, (4,))
            return F.linear(self.lin(h), self.weight)

    return Lambda(body), rows(), square


def cast_without_gradient() -> Made:
    """A cast that is first made under no_grad, in an autocast of its own and in the same one."""

    def body(self: Any, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            target = self.lin(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.lin(x)
            with torch.no_grad():
                other = self.lin(h)
            return (h - target) * other @ self.weight

    return Lambda(body), rows(), square


def cast_and_not_kept() -> Made:
    """Autocast with its cache off."""

    def body(self: Any, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            return self.lin(self.lin(x))

    return Lambda(body), rows(), square


def old_norms() -> Made:
    """Weight and spectral norm in their older form: hooks that compute a weight before forward."""
    linear = nn.utils.weight_norm(nn.Linear(4, 4))
    spectral = nn.utils.spectral_norm(nn.Linear(4, 4))
    model = nn.Sequential(linear, nn.Tanh(), spectral)
    model(rows())  # the weights have a history from here on
    return model, rows(), square


def pruned() -> Made:
    """Masked weights, twice over: hooks that compute a weight before forward."""
    linear, other = nn.Linear(4, 4), nn.Linear(4, 4)
    for layer, name, amount in ((linear, "weight", 0.5), (other, "bias", 2), (linear, "weight", 1)):
        prune.l1_unstructured(layer, name, amount)  # type: ignore[no-untyped-call]
    return nn.Sequential(linear, nn.Tanh(), other), rows(), square


def transformed() -> Made:
    """A row at a time, inside `vmap`, and derivatives with regard to the input."""

    def body(self: Any, x: torch.Tensor) -> Any:
        wide = torch.vmap(lambda row: self.lin(row).tanh())(x)
        return wide + torch.func.grad(lambda h: h.sin().sum())(wide)

    return Lambda(body), rows(), square


def against_a_prior() -> Made:
    """The distance of two distributions, one of them an attribute made of other tensors."""

    def body(self: Any, x: torch.Tensor) -> Any:
        found = torch.distributions.Normal(self.lin(x), 1.0)
        return torch.distributions.kl_divergence(found, self.prior)

    model: Any = Lambda(body)
    model.prior = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    return model, rows(), square


def parametrized() -> Made:
    """Parametrizations, one with power iterations that move its buffers."""
    weight = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4), n_power_iterations=2)
    turned = orthogonal(1.0)
    return nn.Sequential(weight, nn.Tanh(), spectral, nn.Tanh(), turned), rows(), square


def orthogonal(scale: float) -> nn.Module:
    """An orthogonal weight, the exponential of a matrix with numbers as large as `scale`."""
    linear: Any = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
    with torch.no_grad():
        linear.parametrizations.weight.original.normal_().mul_(scale)
    layer: nn.Module = linear
    return layer


def complex_numbers() -> Made:
    """Complex parameters, products and a transform."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = torch.fft.fft(self.lin(x)) @ self.turn
        h = torch.view_as_real(h * h.conj().exp()).tanh().sum(-1)
        return torch.fft.irfft(torch.fft.rfft(h) * self.turn[0, :3]) + h

    model = Lambda(body)
    model.turn = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64) * 0.3)
    return model, rows(), square


def tied_and_unused() -> Made:
    """Tied, frozen and unused parameters, and an input that wants a gradient."""

    def body(self: Any, x: torch.Tensor) -> Any:
        return torch.tanh(self.other(torch.tanh(self.lin(x)))) @ self.weight.detach() @ self.still

    other = nn.Linear(4, 4)
    model = Lambda(body, other=other)
    other.weight = model.lin.weight
    model.still = nn.Parameter(torch.randn(4, 4), requires_grad=False)
    return model, rows().requires_grad_(), square


KINDS: tuple[Callable[[], Made], ...] = (
    cumulative_norm, cumulative_norm_frozen, counters, cast_twice, cast_without_gradient,
    cast_and_not_kept, old_norms, pruned, transformed, against_a_prior,
    parametrized, complex_numbers, tied_and_unused,
)  # fmt: skip


def schedules(captured: Captured) -> tuple[Schedule, Schedule]:
    """All of the forward again that backward needs; and drops at random."""
    graph = captured.graph
    return recomputing(graph, len(graph.ops)), random_schedule(graph, random.Random(0), drop=0.8)


def scalar(out: Any) -> torch.Tensor:
    """The loss of whatever a step returns: itself, or the sum of several outputs."""
    if isinstance(out, dict):
        return scalar(out["loss"])
    if isinstance(out, tuple):
        return sum((item.sum() for item in out), torch.zeros(()))
    loss: torch.Tensor = out
    return loss


def outside(captured: Captured) -> int:
    """Bytes of a loss outside, by `scalar`, beyond those that the plan counts for it: below zero.

    Gradients that arrive count as large as the outputs. Those of a sum are its own gradient, one
    number, expanded; it is alive in backward, and so is the sum.
    """
    return 4 + 4 - sum(t.size_bytes for t in captured.graph.tensors if "tangent" in t.name)


def train(made: Made, loss_outside: bool = False) -> None:
    """Three AdamW steps, plain and replayed, and the peak of one."""
    model, batch, loss = made
    batches = [
        pytree.tree_map_only(torch.Tensor, partial(_other, step=step), batch) for step in range(3)
    ]
    captured = measured(model, batches[0], loss)
    assert any(schedule.recomputes() > 0 for schedule in schedules(captured))
    for schedule in schedules(captured):
        module = replay(captured, plan_of(captured.graph, schedule))
        found = verify(model, module, batches, repeats=1, loss_of=scalar)
        assert found.ok, found.first_difference
        beyond = outside(captured) if loss_outside else 0
        assert found.replay_peak_bytes == found.predicted_peak_bytes + beyond


def measured(model: nn.Module, batch: Any, loss: Any) -> Captured:
    """A step whose workspaces are known; times do not matter here."""
    return profile(capture(model, batch, loss, times="none"), budget_s=0.1, cache=False)


def _other(tensor: torch.Tensor, step: int) -> torch.Tensor:
    """Another tensor of the same look for each step."""
    if not tensor.is_floating_point():
        return tensor.roll(step)
    new = tensor.detach() * (1 + 0.5 * step)
    return new.requires_grad_(tensor.requires_grad)


@pytest.mark.filterwarnings("ignore:.*(weight|spectral)_norm.* is deprecated")
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_kind_is_exact(make: Callable[[], Made]) -> None:
    """Every bit of the plain steps."""
    torch.manual_seed(0)
    train(make())


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [m for m in models.EXACT if m is not models.penalty], ids=lambda make: make.__name__
)
def test_captured_models_train_exactly(make: Callable[[], Made]) -> None:
    """The steps that the capture is tested with."""
    torch.manual_seed(0)
    train(make(), loss_outside=make is models.two_losses)


def test_a_workspace_that_depends_on_values_is_bounded() -> None:
    """The exponential of a small matrix takes fewer terms than that which was measured."""
    rooms = {}
    for scale in (0.0, 1e-3, 1e3):
        torch.manual_seed(0)
        model = orthogonal(scale)
        captured = measured(model, rows(), square)
        module = replay(captured, plan_of(captured.graph, schedules(captured)[0]))
        found = verify(model, module, [rows()], repeats=1, optimizer=None)
        rooms[scale] = found.predicted_peak_bytes - found.replay_peak_bytes
    assert rooms[1e3] == 0
    assert min(rooms.values()) == 0, rooms


def test_the_cache_of_casts_is_guarded() -> None:
    """Whether casts are kept changes gradients: a call under the other setting is refused."""
    torch.manual_seed(0)
    model, batch, loss = cast_twice()
    captured = capture(model, batch, loss, times="none")
    module = replay(captured, plan_of(captured.graph, schedules(captured)[0]))
    module(batch)
    torch.set_autocast_cache_enabled(False)
    try:
        with pytest.raises(ReplayError, match="autocast's cache of casts is off and was on"):
            module(batch)
    finally:
        torch.set_autocast_cache_enabled(True)


def test_casts_are_made_once() -> None:
    """A weight that is used three times in an autocast is cast once."""
    model, batch, loss = cast_twice()
    captured = capture(model, batch, loss, times="none")
    weights = {s.value for s in captured.program.inputs if s.kind == "param"}
    casts = [
        op
        for op in captured.program.ops
        if op.call is not None and "_to_copy" in op.call.name and weights & set(op.reads)
    ]
    assert len(casts) == len(weights)
