"""Profiles of captured steps: the predicted peak is the measured one, to the byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lowtide
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.entries import op_call
from lowtide.frontends.torch.costs.machine import PRESETS, Machine
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.costs.profile import profile
from lowtide.frontends.torch.costs.roofline import roofline_times
from lowtide.frontends.torch.costs.synthetic import Synthesizer
from lowtide.frontends.torch.layouts import RULES, Like
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty cache folder, preset machine rates, one thread."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Machine, "measured", lambda *_, **__: PRESETS["cpu"])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _Convolutional(nn.Module):
    """Batch norm with running statistics, max pooling, dropout, cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = functional.max_pool2d(functional.relu(self.norm1(self.conv1(x))), 2)
        h = h + functional.relu(self.norm2(self.conv2(h)))
        return functional.cross_entropy(self.head(functional.dropout(h.flatten(1), 0.2)), y)


class _Attention(nn.Module):
    """Token and position tables, one attention layer, tied output table, squared error beside."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(12, 16)
        self.norm, self.mix = nn.LayerNorm(16), nn.Linear(16, 48)
        self.register_buffer("order", torch.arange(12).flip(0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        n = ids.shape[1]
        place = self.order[:n] - self.order[:n].min()  # type: ignore[index]
        h = self.tokens(ids) + self.places(place)
        q, k, v = self.mix(self.norm(h)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + mixed.transpose(1, 2).flatten(2)
        logits = h @ self.tokens.weight.t()
        error = functional.mse_loss(h, torch.zeros_like(h))
        return functional.cross_entropy(logits.flatten(0, 1), ids.flatten()) + error


def _convolutional() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return _Convolutional(), (torch.rand(4, 3, 8, 8), torch.randint(0, 5, (4,)))


def _attention() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return _Attention(), (torch.randint(0, 50, (3, 7)),)


MODELS = {"convolutional": _convolutional, "attention": _attention}


@pytest.mark.parametrize("name", MODELS)
def test_peak_is_predicted_to_the_byte(name: str) -> None:
    """Simulation with profiled sizes and workspaces = allocator's peak of the replayed step."""
    model, batch = MODELS[name]()
    captured = profile(capture(model, batch))
    graph = captured.graph
    module = lowtide.replay(captured, plan_of(graph, lowtide.Schedule.keep_everything(graph)))
    module(*batch).backward()
    for parameter in model.parameters():
        parameter.grad = None
    measured = measure_peak(lambda: module(*batch).backward()).peak_bytes
    predicted = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    assert measured == predicted - graph.resident_bytes


@pytest.mark.parametrize("name", MODELS)
def test_profile_touches_nothing(name: str) -> None:
    """Parameters, running statistics, counters and the generator are as before."""
    model, batch = MODELS[name]()
    captured = capture(model, batch)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    profile(captured, cache=False)
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_op_gets_a_time_and_its_alike_the_same() -> None:
    """Only the boundary to the backward is free; nothing failed to run."""
    model, batch = _convolutional()
    graph = profile(capture(model, batch)).graph
    assert [op.kind for op in graph.ops if op.time_ns == 0] == ["lowtide.backward"]
    assert ", 0 not runnable" in graph.meta["profile"]
    assert graph.meta["times"] == "measured"


def test_integer_arguments_are_those_of_the_step() -> None:
    """Indices into tables come from the batch and from buffers, through integer arithmetic."""
    model, batch = _attention()
    captured = capture(model, batch)
    program = captured.program
    synthesizer = Synthesizer(captured)
    seen = []
    for op in program.ops:
        call = op_call(program, op)
        if call is not None and "embedding.default" in str(call.target):
            seen.append(synthesizer.arguments(call)[0][1])
    assert torch.equal(seen[0], batch[0])
    assert torch.equal(seen[1], torch.arange(7).flip(0))


def test_example_is_copied() -> None:
    """What the synthesizer hands out can be overwritten without harm."""
    model, batch = _attention()
    captured = capture(model, batch)
    program = captured.program
    for op in program.ops:
        call = op_call(program, op)
        if call is None:
            continue
        for argument in Synthesizer(captured).arguments(call)[0]:
            if isinstance(argument, torch.Tensor) and 0 not in argument.stride():
                argument.zero_()
    kept = [leaf for leaf in captured.example if isinstance(leaf, torch.Tensor)]
    assert torch.equal(kept[0], batch[0])
    assert torch.equal(model.order, torch.arange(12).flip(0))  # type: ignore[arg-type]


def test_roofline_needs_no_memory() -> None:
    """A model on the meta device is estimated, for a machine that is not here."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.ReLU(), nn.Linear(1 << 20, 1))
        batch = torch.empty(4, 1 << 20)
    captured = capture(model, batch, lambda out: out.sum(), device="cpu")
    times = roofline_times(captured, "a100-80gb")
    assert len(times) == len(captured.graph.ops)
    by_kind = {op.kind: time for op, time in zip(captured.graph.ops, times, strict=True)}
    # 4 TiB of weights through 2 TB/s.
    assert by_kind["aten.addmm.default"] > 0
    assert max(times) > 2e9


def test_a_layout_that_the_trace_has_wrong_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each signature, also when its measurement is known; nothing where all is right."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LogSigmoid())
    batch = torch.rand(6, 4)

    def told() -> list[str]:
        caplog.clear()
        profile(capture(model, (batch,), lambda out: (out.t() * out.t()).log().sum()))
        return [r.getMessage() for r in caplog.records if "strides" in r.getMessage()]

    assert not told()
    op: Any = torch.ops.aten.log_sigmoid_forward.default
    monkeypatch.setitem(RULES, op, lambda x: (Like((1, 6)), None))
    for _ in range(2):
        (line,) = told()
        assert line.startswith("aten.log_sigmoid_forward.default gives strides (4, 1)")
