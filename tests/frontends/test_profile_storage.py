"""Ops that copy the whole storage behind a view are profiled with it."""

from __future__ import annotations

import torch
from torch import nn

import lowtide
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.costs.signature import copies_storage
from lowtide.frontends.torch.costs.synthetic import Synthesizer


class _HalfScaled(nn.Module):
    """Writes through a view of a third of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 192)
        self.out = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.fc(x) * 2.0
        q, k, v = qkv[..., :64], qkv[..., 64:128], qkv[..., 128:]
        q[..., :2].mul_(0.5)
        loss: torch.Tensor = self.out(q + k * v).square().mean()
        return loss


def test_writes_through_views_are_timed_on_their_storage() -> None:
    """The arguments of such an op have the storage that they have in the step, and it is larger."""
    captured = lowtide.capture(_HalfScaled(), torch.randn(48, 64))
    program = captured.program
    larger = 0
    for op in program.ops:
        if op.call is None or not copies_storage(op.call):
            continue
        meta = program.value_meta[op.call.args[0].index]
        argument = Synthesizer(captured).arguments(op.call)[0][0]
        assert argument.untyped_storage().nbytes() == meta.storage * meta.dtype.itemsize
        larger += meta.storage > argument.numel()
    assert larger > 0


def test_peak_of_writes_through_views_is_exact() -> None:
    """Predicted and measured peak agree to the byte where a view of a larger storage is copied."""
    torch.manual_seed(0)
    model, x = _HalfScaled(), torch.randn(48, 64)
    captured = lowtide.capture(model, x, times="measured")
    plan = lowtide.solve(captured.graph, "max")
    module = lowtide.replay(captured, plan)
    module(x).backward()
    module.zero_grad(set_to_none=True)
    reading = measure_peak(lambda: module(x).backward())
    assert reading.peak_bytes + plan.resident_bytes == plan.peak_bytes
