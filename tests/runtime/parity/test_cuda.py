"""On a GPU: the bits of plain PyTorch, peaks within the allocator's rounding, random state."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.bench import CUDA_BLOCK_BYTES
from lowtide.frontends.torch.costs.libraries import workspace_bytes
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay

from ..models import SMALL, TRANSFORMERS, Case, make, square
from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

# Read when the first handle is made: two matrix products are otherwise not the same bits.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.usefixtures("exact"),
]
_ON_CPU = {"autocast"}  # enters autocast for the CPU by name


@pytest.fixture
def exact() -> Iterator[None]:
    """Deterministic kernels where there are some; those without only warn."""
    before = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
        torch.use_deterministic_algorithms(before)


def _on_gpu(name: str, device: str = "cuda") -> Case:
    case = make(name)
    move = torch.device(device)

    def batch(seed: int) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(move), case.batch(seed))

    return replace(case, model=case.model.to(move), batch=batch)


def _check(case: Case, *, seed: int = 1, peak: bool = True) -> None:
    """Random recomputations change no bit; the peak is the predicted one but for rounding."""
    captured = profile(capture(case.model, case.batch(0), case.loss_fn), budget_s=10, cache=False)
    schedule = random_schedule(captured.graph, random.Random(seed))
    assert schedule.recomputes() > 0
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(case.model, module, [case.batch(i) for i in range(3)], repeats=1)
    assert found.ok, found.first_difference
    if peak:
        rounding = CUDA_BLOCK_BYTES * 2 * len(captured.graph.tensors)
        assert abs(found.replay_peak_bytes - found.predicted_peak_bytes) <= rounding


@pytest.mark.parametrize("name", [n for n in (*SMALL, *TRANSFORMERS) if n not in _ON_CPU])
def test_bits_and_bytes(name: str) -> None:
    """All kinds of models."""
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    _check(_on_gpu(name))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ambient_autocast(dtype: torch.dtype) -> None:
    """Mixed precision around the step, half precision attention with dropout in it."""
    with torch.autocast("cuda", dtype=dtype):
        _check(_on_gpu("gpt"))


def test_random_state_is_that_of_plain_training() -> None:
    """After a step with dropout drawn again, the generator is where plain training leaves it."""
    case = _on_gpu("mlp")
    captured = capture(case.model, case.batch(0), case.loss_fn)
    schedule = random_schedule(captured.graph, random.Random(3), drop=0.6)
    module = replay(captured, plan_of(captured.graph, schedule))
    states = []
    for call in (captured.call, lambda a, k: module(*a, **k)):
        torch.manual_seed(11)
        call(case.batch(1), {}).backward()
        states.append(torch.cuda.get_rng_state())
    assert torch.equal(*states)


def test_a_side_stream() -> None:
    """Forward and backward run on the stream of the call."""
    case = _on_gpu("cnn")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _check(case, peak=False)
    torch.cuda.current_stream().wait_stream(stream)


def test_another_device_than_the_current_one() -> None:
    """A model on the second GPU while the first is current."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    _check(_on_gpu("gpt", "cuda:1"))


def test_batch_norm_takes_the_kernel_of_eager() -> None:
    """cuDNN's where eager runs cuDNN's, with and without it."""
    model = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8)).cuda()
    batch = torch.randn(6, 8, 10, 10, device="cuda", requires_grad=True)
    for enabled in (True, False):
        flags: Any = torch.backends.cudnn.flags
        with flags(enabled=enabled) if not enabled else contextlib.nullcontext():
            captured = capture(model, batch, square)
            schedule = random_schedule(captured.graph, random.Random(2))
            module = replay(captured, plan_of(captured.graph, schedule))
            found = verify(model, module, [batch] * 2, measure=False)
        assert found.ok, found.first_difference


def test_libraries_keep_a_workspace() -> None:
    """What cuBLAS keeps is found again after it was cleared, and is whole blocks."""
    device = torch.device("cuda", torch.cuda.current_device())
    first = workspace_bytes(device)
    assert first == workspace_bytes(device)
    assert first % CUDA_BLOCK_BYTES == 0


def test_meter_counts_requests() -> None:
    """The peak of a call is what it asked for, neither rounded nor padded."""
    device = torch.device("cuda", torch.cuda.current_device())

    def call() -> torch.Tensor:
        kept = torch.empty(1000, dtype=torch.uint8, device=device)
        torch.empty(3_000_000, dtype=torch.uint8, device=device)
        return kept

    call()
    reading = measure_peak(call, device)
    assert (reading.peak_bytes, reading.end_bytes) == (3_001_000, 1000)


def test_benchmarking_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """cuDNN may choose another algorithm for a convolution that runs again."""
    case = _on_gpu("cnn")
    captured = capture(case.model, case.batch(0), case.loss_fn)
    convolutions = [i for i, op in enumerate(captured.graph.ops) if "convolution.d" in op.kind]
    schedule = next(
        s
        for seed in range(50)
        if (s := random_schedule(captured.graph, random.Random(seed))).computes().count(
            convolutions[1]
        ) > 1
    )  # fmt: skip
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        replay(captured, plan_of(captured.graph, schedule))
    finally:
        torch.backends.cudnn.benchmark = before
    assert "cudnn.benchmark is on" in caplog.text
