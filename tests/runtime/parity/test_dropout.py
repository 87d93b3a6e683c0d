"""Dropout of every kind, and masks made by hand: bits, bytes and random state of plain PyTorch."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile
from lowtide.frontends.torch.masks import bernoulli
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule

from ..models import square
from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured

pytestmark = pytest.mark.usefixtures("one_thread")
_LAST = torch.channels_last
# A rate for which 1 / (1 - p) in double precision rounds to another float than 1 / float(1 - p).
_UNEVEN = 0.04


def _autocast(h: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.dropout(h @ h.mT, 0.3)


def _attention(h: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(h, h, h, dropout_p=0.3)


def _chain(h: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.dropout(h, 0.1).sin(), 0.2, inplace=True)


def _path(h: torch.Tensor) -> torch.Tensor:
    return h + h.sin() * h.new_empty(h.shape[0], 1, 1, 1).bernoulli_(0.7).div_(0.7)


def _mask_first(h: torch.Tensor) -> torch.Tensor:
    return (torch.empty_like(h).bernoulli_(0.4) / 0.4) * h


def _mask_twice(h: torch.Tensor) -> torch.Tensor:
    mask = torch.empty_like(h).bernoulli_(0.4)
    return h * mask + h.sin() * (mask / 0.4) * (1 - mask)


def _overwritten(h: torch.Tensor) -> torch.Tensor:
    h = h.sin()
    h[:, 1].bernoulli_(0.3)
    return h


DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda h: F.dropout(h, 0.3),
    "uneven": lambda h: F.dropout(h, _UNEVEN),
    "in_place": lambda h: F.dropout(h.sin(), 0.3, inplace=True),
    "double": lambda h: F.dropout(h.double(), 0.3).float(),
    "half": lambda h: F.dropout(h.bfloat16(), 0.3).float(),
    "chain": _chain,
    "channels": lambda h: F.dropout2d(h, 0.3),
    "channels_in_place": lambda h: F.dropout2d(h.sin(), 0.3, inplace=True),
    "alpha": lambda h: F.alpha_dropout(h, 0.3, training=True),
    "alpha_in_place": lambda h: F.alpha_dropout(h.sin(), 0.3, training=True, inplace=True),
    "alpha_channels": lambda h: F.feature_alpha_dropout(h, 0.3, training=True),
    "channels_last": lambda h: F.dropout(h.contiguous(memory_format=_LAST), 0.3),
    "alpha_last": lambda h: F.alpha_dropout(h.contiguous(memory_format=_LAST), 0.3, True),
    "transposed": lambda h: F.dropout(h.transpose(1, 3).sin(), 0.3),
    "sliced": lambda h: F.dropout(h[:, :, ::2, 1:], 0.3),
    "expanded": lambda h: F.dropout(h[:, :1].expand_as(h), 0.3) * h,
    "one_number": lambda h: F.dropout(h.sum(), 0.3),
    "autocast": _autocast,
    "attention": _attention,
    "path": _path,
    "mask_first": lambda h: _mask_first(h.contiguous(memory_format=_LAST)),
    "mask_twice": _mask_twice,
    "overwritten": _overwritten,
}
STILL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda h: F.dropout(h, 0.0),
    "everything": lambda h: h + F.dropout(h, 1.0),
    "everything_in_place": lambda h: h + F.dropout(h.sin(), 1.0, inplace=True),
    "evaluation": lambda h: F.dropout(h, 0.3, training=False),
    "empty": lambda h: h.sum() + F.dropout(h[:0], 0.3).sum(),
}


class Dropping(nn.Module):
    """A convolution, something random, a batch norm."""

    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = body
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> Any:
        """One step."""
        return self.body(self.norm(self.conv(x))).float()


def batch(seed: int) -> torch.Tensor:
    """Four small square pictures."""
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def captured_of(body: Callable[[torch.Tensor], torch.Tensor]) -> Captured:
    """A captured step with measured bytes and guessed times."""
    captured = capture(Dropping(body), batch(0), square)
    return profile(captured, budget_s=0.01, cache=False)


def check(captured: Captured, schedule: Schedule, *, measure: bool = False) -> str:
    """Train two steps by a schedule and plainly, compare; the code of the schedule."""
    module = replay(captured, plan_of(captured.graph, schedule))
    batches = [batch(i) for i in range(2)]
    found = verify(captured.model, module, batches, measure=measure, repeats=1)
    assert found.ok, found.first_difference
    assert not measure or found.replay_peak_bytes == found.predicted_peak_bytes
    return module.code


def drawn(code: str) -> int:
    """How often code draws a mask."""
    return sum(" = bernoulli(" in line for line in code.splitlines())


@pytest.mark.parametrize("name", DRAWING)
def test_dropout_is_exact(name: str) -> None:
    """Losses, gradients, buffers, generator and peak agree, also with masks that are redrawn."""
    captured = captured_of(DRAWING[name])
    once = drawn(check(captured, Schedule.keep_everything(captured.graph)))
    assert once > 0
    redrawn = 0
    for seed in range(2):
        schedule = random_schedule(captured.graph, random.Random(seed), drop=0.9)
        redrawn += drawn(check(captured, schedule, measure=seed == 0)) - once
    assert redrawn > 0


@pytest.mark.parametrize("name", STILL)
def test_dropout_that_draws_nothing_is_exact(name: str) -> None:
    """Dropout of nothing or everything takes no random numbers and saves no state."""
    captured = captured_of(STILL[name])
    assert not any(op.random for op in captured.program.ops)
    check(captured, Schedule.keep_everything(captured.graph))
    schedule = random_schedule(captured.graph, random.Random(0), drop=0.9)
    check(captured, schedule, measure=True)


def test_drawn_modules_are_exact() -> None:
    """Attention with dropout on its weights, and a transformer layer in training mode."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=_UNEVEN, batch_first=True)
    captured = profile(capture(layer, torch.randn(2, 5, 8), square), budget_s=0.01, cache=False)
    for seed in range(2):
        schedule = random_schedule(captured.graph, random.Random(seed), drop=0.5)
        module = replay(captured, plan_of(captured.graph, schedule))
        found = verify(layer, module, [torch.randn(2, 5, 8) for _ in range(2)], measure=False)
        assert found.ok, found.first_difference
        assert drawn(module.code) > 4


def test_a_mask_is_one_op_in_one_buffer() -> None:
    """A mask reads nothing but the random state and takes the bytes of what it is drawn for."""
    captured = captured_of(DRAWING["dropout"])
    graph, program = captured.graph, captured.program
    (at,) = (i for i, op in enumerate(graph.ops) if op.kind == "lowtide.bernoulli")
    op, node = program.ops[at], graph.ops[at]
    assert op.call is not None
    assert op.call.target is bernoulli
    assert op.reads == (op.rng_value,)
    assert node.recompute
    assert sum(graph.tensors[t].size_bytes for t in node.outputs) == 4 * batch(0).numel()
    users = [
        graph.ops[i].kind for i, other in enumerate(program.ops) if op.writes[0] in other.reads
    ]
    assert users == ["aten.mul.Tensor"] * 2  # forward and backward
    assert not any("empty" in other.kind or "copy" in other.kind for other in graph.ops)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["dropout", "uneven", "in_place", "channels", "alpha", "path"])
def test_dropout_on_cuda(name: str) -> None:
    """On CUDA plain dropout is PyTorch's fused kernel, as it is in eager PyTorch."""
    captured = capture(Dropping(DRAWING[name]).cuda(), batch(0).cuda(), square)
    fused = any(op.kind == "aten.native_dropout.default" for op in captured.graph.ops)
    assert fused == (name in ("dropout", "uneven"))
    schedule = random_schedule(captured.graph, random.Random(0), drop=0.9)
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(captured.model, module, [batch(i).cuda() for i in range(3)], measure=False)
    assert found.ok, found.first_difference
