"""The meter against allocation patterns whose peak is known by hand."""

from __future__ import annotations

import time

import pytest
import torch

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs import meter
from lowtide.frontends.torch.costs.meter import (
    MeterError,
    extra_time,
    measure_peak,
    measure_step_time,
    medians,
)
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.replay import replay
from lowtide.solver.errors import InputError
from lowtide.solver.schedule import Schedule

from ..schedules import plan_of

KIB = 1024


def _block(size: int) -> torch.Tensor:
    """One allocation of `size` bytes."""
    return torch.empty(size, dtype=torch.uint8)


def test_peak_counts_every_block_that_lives_at_once() -> None:
    """Two blocks together, one of them freed, then a smaller one: the first moment is the peak."""

    def run() -> list[torch.Tensor]:
        kept = [_block(3 * KIB)]
        extra = _block(5 * KIB)
        del extra
        kept.append(_block(KIB))
        return kept

    reading = measure_peak(run)
    assert reading.peak_bytes == 8 * KIB
    assert reading.end_bytes == 4 * KIB
    assert [t.numel() for t in reading.result] == [3 * KIB, KIB]


def test_blocks_from_before_do_not_count() -> None:
    """What was allocated before the call is no part of the peak, however large."""
    older = _block(64 * KIB)
    reading = measure_peak(older.clone)
    assert reading.peak_bytes == reading.end_bytes == 64 * KIB


def test_requested_bytes_are_neither_rounded_nor_aligned() -> None:
    """A block of 17 bytes counts 17, views and zero-byte tensors count nothing."""

    def run() -> tuple[torch.Tensor, ...]:
        odd = _block(17)
        return odd, odd.view(torch.int8), torch.empty(0), torch.empty(4, 0, 3)

    reading = measure_peak(run)
    assert reading.peak_bytes == reading.end_bytes == 17


def test_temporaries_inside_an_operator_are_seen() -> None:
    """`native_dropout` draws 4-byte numbers for its 1-byte mask: they are in the peak only."""
    x = torch.ones(64, 64)
    reading = measure_peak(lambda: torch.ops.aten.native_dropout.default(x, 0.5, True))
    assert reading.end_bytes == 64 * 64 * (4 + 1)
    assert reading.peak_bytes >= reading.end_bytes + 64 * 64 * 4


def test_backward_pass_is_measured_in_this_thread() -> None:
    """Gradients of a linear layer stay: weight and bias bytes at the end."""
    layer = torch.nn.Linear(32, 16)
    x = torch.ones(8, 32)
    reading = measure_peak(lambda: layer(x).sum().backward())
    assert reading.end_bytes == (32 * 16 + 16) * 4
    assert reading.peak_bytes >= reading.end_bytes


def test_both_recorders_agree() -> None:
    """The two event recorders of PyTorch log the same changes, in the same order."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)], torch.nn.GELU())
    x = torch.ones(8, 16)

    def run() -> None:
        layers(x).sum().backward()
        layers.zero_grad()

    run()
    first = meter._record_legacy(run)[1]
    second = meter._record_kineto(run)[1]
    assert len(first) > 20
    assert first == second


def test_kineto_recorder_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the older recorder the peak is the same."""
    monkeypatch.delattr(torch.autograd, "_enable_profiler_legacy")
    assert measure_peak(lambda: _block(123)).peak_bytes == 123


def test_result_of_a_failing_call_is_its_error() -> None:
    """An error passes through and leaves the meter usable."""

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        measure_peak(fail)
    assert measure_peak(lambda: _block(9)).peak_bytes == 9


def test_nested_measurement_is_refused() -> None:
    """Two recorders at once would lose events: one clear error instead."""
    with pytest.raises(MeterError, match="while a torch profiler runs"):
        measure_peak(lambda: measure_peak(lambda: None))


def test_unknown_device_is_refused() -> None:
    """A device without an allocator to read is an input error."""
    with pytest.raises(InputError, match="meta"):
        measure_peak(lambda: None, "meta")


def test_step_times_alternate() -> None:
    """Rounds run forwards and backwards in turn, and begin further on, after the warm-up."""
    calls: list[str] = []
    seconds = measure_step_time(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=4, warmup=1
    )
    assert calls == list("ababbabaab")
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4}


def test_settled_calls_follow_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is run right before it is timed, unless it takes long."""
    ran: list[str] = []
    fns = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    assert [*map(len, measure_step_time(fns, 4, warmup=1, settle=True).values())] == [4, 4]
    assert "".join(ran) == "ab" + "aabb" + "bbaa" + "bbaa" + "aabb"
    ran.clear()
    monkeypatch.setattr(meter, "_SETTLED_S", 0.0)
    measure_step_time(fns, 1, warmup=1, settle=True)
    assert ran == ["a", "b"] * 2


def test_extra_time_is_of_neighbours() -> None:
    """A clock that changes its speed between rounds leaves it as it is."""
    assert extra_time([1.1, 2.2, 4.4], [1.0, 2.0, 4.0]) == pytest.approx(0.1)


def test_step_time_is_in_seconds() -> None:
    """A sleep of 20 ms is measured as at least that long, and its median too."""
    seconds = measure_step_time({"sleep": lambda: time.sleep(0.02)}, repeats=3, warmup=0)
    assert 0.02 <= medians(seconds)["sleep"] < 1.0


@pytest.mark.usefixtures("one_thread")
def test_a_gradient_that_is_left_out_takes_nothing() -> None:
    """Batch norm on the batch itself: nobody asks for the gradient of its input."""
    torch.manual_seed(0)
    model, x = torch.nn.BatchNorm1d(64), torch.randn(64, 64)
    captured = profile(capture(model, x, lambda out: out.square().mean()), budget_s=1, cache=False)
    plan = plan_of(captured.graph, Schedule.keep_everything(captured.graph))
    module = replay(captured, plan)

    def step() -> torch.Tensor:
        loss: torch.Tensor = module(x)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    step()
    module.zero_grad()
    predicted = plan.peak_bytes - captured.graph.resident_bytes
    assert measure_peak(step).peak_bytes == predicted
