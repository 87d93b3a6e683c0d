"""Batch norm by the kernel that eager PyTorch chooses; on the CPU there is one, so bits agree."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from lowtide.frontends.torch import lower, norms
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile
from lowtide.frontends.torch.program import Call
from lowtide.frontends.torch.rng import draws
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay

from ..runtime.models import make
from ..runtime.schedules import plan_of, random_schedule

if TYPE_CHECKING:
    import pytest


def test_the_choosing_operator_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, backward, running statistics and peaks are the same with recomputations."""
    chosen = norms.chosen_norms
    monkeypatch.setattr(
        lower, "chosen_norms", lambda lines, values: chosen(lines, values, ("cpu",))
    )
    case = make("cnn")
    captured = profile(capture(case.model, case.batch(0), case.loss_fn), budget_s=5, cache=False)
    kinds = [op.kind for op in captured.graph.ops]
    forward = kinds.count("aten._batch_norm_with_update.default")
    assert forward == kinds.count("aten.batch_norm_backward.default") == 5
    assert not any("native_batch_norm" in kind for kind in kinds)
    schedule = random_schedule(captured.graph, random.Random(1))
    assert schedule.recomputes() > 0
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(case.model, module, [case.batch(i) for i in range(3)], repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes


def test_the_cpu_keeps_its_kernel() -> None:
    """Only CUDA has the choice."""
    case = make("cnn")
    kinds = {op.kind for op in capture(case.model, case.batch(0), case.loss_fn).graph.ops}
    assert "aten._native_batch_norm_legit.default" in kinds


def test_backwards_of_attention_draw_nothing() -> None:
    """They are tagged as random and take the seed of the forward as an argument."""
    aten = torch.ops.aten
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    assert torch.Tag.nondeterministic_seeded in backward.tags
    assert not draws(Call(backward, (), {}, (0,), unpack=True))
