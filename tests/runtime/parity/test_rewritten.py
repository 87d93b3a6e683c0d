"""Calls that a trace shows as others have the same bits; what has none is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributions import Distribution
from torch.nn import functional as F

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError

from ...frontends.models import Lambda, rows
from ...plans import recomputing
from ..schedules import plan_of

if TYPE_CHECKING:
    from lowtide.runtime.module import ReplayModule

ctc_loss: Any = F.ctc_loss  # typed for tensors only
pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = torch.tensor([[1, 2], [2, 1], [3, 3]])


def replayed(model: nn.Module, batch: torch.Tensor) -> ReplayModule:
    """With much recomputation."""
    captured = capture(model, batch, times="none")
    return replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
@pytest.mark.parametrize("ends", [(0, 5), (2, 7), (-3, 4), (0, 2**33)])
def test_random_integers_between_two_ends(ends: tuple[int, int], dtype: torch.dtype) -> None:
    """The numbers, and the state of the generator, are eager PyTorch's."""

    def body(self: Any, x: torch.Tensor) -> Any:
        return (self.lin(x).sin() * torch.empty(3, 4, dtype=dtype).random_(*ends)).sum()

    model = Lambda(body)
    if dtype is torch.int8 and ends[1] > 127:
        pytest.skip("too large for the type")
    if dtype is torch.float32 and ends[1] > 2**24:
        with pytest.raises(CaptureError, match=r"random_\(0, .*use torch\.randint"):
            replayed(model, rows())
        return
    report = verify(model, replayed(model, rows()), [rows()])
    assert report.ok, str(report)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss_with_integers_as_lengths(reduction: str, zero_infinity: bool) -> None:
    """Also with an empty target, and one that is too long for its input."""

    def body(self: Any, x: torch.Tensor) -> Any:
        found = self.lin(x).view(6, 3, 4).log_softmax(-1)
        losses: torch.Tensor = ctc_loss(
            found, LABELS, (6, 5, 6 if zero_infinity is False else 2), (2, 0, 2),
            reduction=reduction, zero_infinity=zero_infinity,
        )  # fmt: skip
        return losses.sum()

    model, batch = Lambda(body), torch.randn(18, 4)
    report = verify(model, replayed(model, batch), [batch])
    assert report.ok, str(report)


def test_ctc_loss_with_tensors_as_lengths_is_refused() -> None:
    """They decide of sizes."""

    def body(self: Any, x: torch.Tensor) -> Any:
        found = self.lin(x).view(6, 3, 4).log_softmax(-1)
        return F.ctc_loss(found, LABELS, torch.full((3,), 6), torch.full((3,), 2))

    with pytest.raises(CaptureError, match=r"give them as tuples of integers"):
        replayed(Lambda(body), torch.randn(18, 4))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("of_weights", [False, True])
def test_rrelu_of_a_transposed_tensor(training: bool, of_weights: bool) -> None:
    """Its result is contiguous, which decides in which order sums over it are rounded."""
    outside = torch.randn(65, 33)

    def body(self: Any, x: torch.Tensor) -> Any:
        y = self.more(x)
        z = F.rrelu(y.t() if of_weights else outside.t().clone(), training=training)
        return z.square().sum() + y.sum()

    model, batch = Lambda(body, more=nn.Linear(65, 65)), torch.randn(33, 65)
    report = verify(model, replayed(model, batch), [batch])
    assert report.ok, str(report)


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_a_replayed_module_inside_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A break in the graph: the plan runs as it is, with the same bits."""
    # `torch.compile` switches the checks of distributions off for good.
    monkeypatch.setattr(Distribution, "_validate_args", Distribution._validate_args)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    captured = capture(model, rows(), lambda out: out.square().mean(), times="none")
    module = replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))
    compiled = torch.compile(module, backend="eager")
    for _ in range(2):
        loss = compiled(rows())
        assert torch.equal(loss, module(rows()))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        wanted = torch.autograd.grad(module(rows()), list(model.parameters()))
        assert all(map(torch.equal, gradients, wanted))
