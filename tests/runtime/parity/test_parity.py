"""Replayed training is plain training, bit by bit, and takes the bytes that were predicted."""

from __future__ import annotations

import random

import pytest
import torch

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule

from ..models import SMALL, TRANSFORMERS, make, profiled
from ..schedules import plan_of, random_schedule

pytestmark = pytest.mark.usefixtures("one_thread")
_ALL = [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMERS)]


@pytest.mark.parametrize("name", _ALL)
def test_keep_everything_is_exact(name: str) -> None:
    """Without recomputation, three AdamW steps agree in every bit and the peak in every byte."""
    case, captured = profiled(name)
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    found = verify(case.model, module, [case.batch(i) for i in range(3)], repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes
    assert found.replay_peak_bytes <= found.plain_peak_bytes
    assert "get_state" not in module.code  # saved for reruns only


@pytest.mark.parametrize("name", _ALL)
@pytest.mark.parametrize("seed", range(4))
def test_random_recomputation_is_exact(name: str, seed: int) -> None:
    """With random recomputations in forward and backward, bits and bytes agree as well."""
    case, captured = profiled(name)
    schedule = random_schedule(captured.graph, random.Random(seed), drop=0.2 + 0.1 * seed)
    assert schedule.recomputes() > 0
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(case.model, module, [case.batch(i) for i in range(3)], repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["mlp", "cnn", "unet"])
def test_cuda_is_exact(name: str) -> None:
    """On CUDA, too, random recomputations change no bit, and the peak is near the predicted one."""
    case = make(name)
    case.model.cuda()

    def batch(seed: int) -> tuple[torch.Tensor, ...]:
        return tuple(t.cuda() for t in case.batch(seed))

    deterministic = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        captured = profile(capture(case.model, batch(0), case.loss_fn), budget_s=10, cache=False)
        schedule = random_schedule(captured.graph, random.Random(1))
        module = replay(captured, plan_of(captured.graph, schedule))
        found = verify(case.model, module, [batch(i) for i in range(3)], repeats=1)
    finally:
        torch.backends.cudnn.deterministic = deterministic
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes <= 1.05 * found.predicted_peak_bytes
