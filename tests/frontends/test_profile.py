"""Profiles of hand-made steps: bytes exact, times capped, nothing of the user's touched."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.frontends.torch.costs import sampler
from lowtide.frontends.torch.costs.bench import Stopwatch
from lowtide.frontends.torch.costs.machine import PRESETS, Machine
from lowtide.frontends.torch.costs.meter import MeterError, measure_peak
from lowtide.frontends.torch.costs.profile import profile
from lowtide.frontends.torch.program import Kind, ValueRef
from lowtide.solver.errors import InputError

from .one_op import Step

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.frontends.torch.captured import Captured

aten: Any = torch.ops.aten


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty cache folder; the machine's rates are a preset, to save time."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Machine, "measured", lambda *_, **__: PRESETS["cpu"])


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Times of one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _conv(step: Step) -> None:
    x, w, b = (
        step.give(torch.rand(2, 3, 16, 16)),
        step.give(torch.rand(8, 3, 3, 3)),
        step.give(torch.rand(8)),
    )
    (y,) = step.add(aten.convolution.default, x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    step.add(
        aten.convolution_backward.default,
        *(y, x, w, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]),
    )


def _norms(step: Step) -> None:
    x, w, b = (step.give(torch.rand(shape)) for shape in ((32, 64), (64,), (64,)))
    y, mean, rstd = step.add(aten.native_layer_norm.default, x, [64], w, b, 1e-5)
    step.add(
        aten.native_layer_norm_backward.default,
        *(y, x, [64], mean, rstd, w, b, [True, True, True]),
    )
    image = step.give(torch.rand(4, 8, 6, 6))
    params = [step.give(torch.rand(8)) for _ in range(4)]
    z, save_mean, save_rstd, *running = step.add(
        aten._native_batch_norm_legit_functional.default, image, *params, True, 0.1, 1e-5
    )
    step.add(
        aten.native_batch_norm_backward.default,
        *(z, image, params[0], *running, save_mean, save_rstd, True, 1e-5, [True, True, True]),
    )


def _losses(step: Step) -> None:
    x, y = step.give(torch.rand(32, 40)), step.give(torch.rand(32, 40))
    (loss,) = step.add(aten.mse_loss.default, x, y)
    step.add(aten.mse_loss_backward.default, loss, x, y, 1)
    target = step.give(torch.randint(0, 40, (32,)))
    (logs,) = step.add(aten._log_softmax.default, x, 1, False)
    nll, weight = step.add(aten.nll_loss_forward.default, logs, target, None, 1, -100)
    step.add(aten.nll_loss_backward.default, nll, logs, target, None, 1, -100, weight)


def _table(step: Step) -> None:
    table, index = step.give(torch.rand(50, 16)), step.give(torch.randint(0, 50, (4, 9)))
    (rows,) = step.add(aten.embedding.default, table, index)
    step.add(aten.embedding_dense_backward.default, rows, index, 50, -1, False)
    image = step.give(torch.rand(2, 3, 8, 8))
    pooled, where = step.add(aten.max_pool2d_with_indices.default, image, [2, 2], [2, 2])
    step.add(
        aten.max_pool2d_with_indices_backward.default,
        *(pooled, image, [2, 2], [2, 2], [0, 0], [1, 1], False, where),
    )


def _attention(step: Step) -> None:
    q, k, v = (step.give(torch.rand(2, 2, 16, 8)) for _ in range(3))
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = step.add(flash.default, q, k, v, 0.0, True)
    step.add(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        *(out, q, k, v, out, lse, 0.0, True),
    )


def _dropout(step: Step) -> None:
    x = step.give(torch.rand(64, 48))
    kept, mask = step.add(aten.native_dropout.default, x, 0.25, True)
    step.add(aten.native_dropout_backward.default, kept, mask, 1.25)
    step.add(aten.add.Scalar, kept, 1)


def _half(step: Step) -> None:
    a, b = (step.give(torch.rand(24, 24).to(torch.bfloat16)) for _ in range(2))
    (c,) = step.add(aten.mm.default, a, b)
    step.add(aten._to_copy.default, c)


STEPS = {
    "conv": _conv,
    "norms": _norms,
    "losses": _losses,
    "table": _table,
    "attention": _attention,
    "dropout": _dropout,
    "half": _half,
}


def _step(*names: str) -> tuple[Step, Captured]:
    step = Step()
    for name in names:
        STEPS[name](step)
    return step, step.captured()


@pytest.mark.parametrize("name", STEPS)
def test_bytes_are_exact(name: str) -> None:
    """Outputs + workspace of every op = the peak of calling it on the real tensors."""
    step, captured = _step(name)
    graph = profile(captured).graph
    for op, call in zip(graph.ops, step.calls, strict=True):
        real = [step.values[a.index] if isinstance(a, ValueRef) else a for a in call.args]
        with torch.no_grad():
            reading = measure_peak(partial(call.target, *real))
        outputs = sum(graph.tensors[t].size_bytes for t in op.outputs)
        assert outputs == reading.end_bytes, op.kind
        assert outputs + op.workspace_bytes == reading.peak_bytes, op.kind
        assert op.time_ns > 0


def test_known_sizes() -> None:
    """A mean squared error keeps its unreduced buffer; dropout draws 4-byte numbers."""
    graph = profile(_step("losses", "dropout")[1]).graph
    by_kind = {op.kind: op for op in graph.ops}
    loss = by_kind["aten.mse_loss.default"]
    assert graph.tensors[loss.outputs[0]].size_bytes == 32 * 40 * 4
    dropout = by_kind["aten.native_dropout.default"]
    assert [graph.tensors[t].size_bytes for t in dropout.outputs] == [64 * 48 * 4, 64 * 48]
    assert dropout.workspace_bytes >= 64 * 48 * 4


def test_unused_outputs_are_workspace() -> None:
    """An output without a tensor in the graph lives only during the op."""
    both, one = Step(), Step()
    for step, used in ((both, None), (one, [0])):
        step.add(aten.native_dropout.default, step.give(torch.rand(64, 48)), 0.5, True, used=used)
    full = profile(both.captured()).graph.ops[0]
    part = profile(one.captured()).graph.ops[0]
    assert part.workspace_bytes == full.workspace_bytes + 64 * 48


def test_random_state_is_untouched() -> None:
    """Profiling random ops draws nothing from the user's generator."""
    captured = _step("dropout")[1]
    state = torch.get_rng_state()
    profile(captured)
    assert torch.equal(state, torch.get_rng_state())


def test_second_profile_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The cache gives the same graph without running an op, and the log says so."""
    captured = _step("conv", "norms", "losses")[1]
    first = profile(captured)

    def refuse(*_: object) -> None:
        raise AssertionError("an op was run")

    monkeypatch.setattr(sampler, "measure_memory", refuse)
    monkeypatch.setattr(Stopwatch, "time", refuse)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert profile(captured).graph == first.graph
    count = first.graph.meta["profile"].split()[0]
    assert f"{count} of {count} distinct operator calls were timed before" in caplog.text


def test_cache_can_be_left_out(tmp_path: Path) -> None:
    """Without the cache no file is read or written."""
    profile(_step("half")[1], cache=False)
    assert list(tmp_path.iterdir()) == []


def test_same_signature_is_measured_once() -> None:
    """Two calls alike get one time; a value used twice is another signature."""
    step = Step()
    x, y = step.give(torch.rand(40, 40)), step.give(torch.rand(40, 40))
    step.add(aten.mul.Tensor, x, y)
    step.add(aten.mul.Tensor, y, x)
    step.add(aten.mul.Tensor, x, x)
    result = profile(step.captured())
    assert result.graph.ops[0].time_ns == result.graph.ops[1].time_ns
    assert result.graph.meta["profile"].startswith("2 signatures, 2 timed")


def test_budget_caps_the_time() -> None:
    """With no time left every op still gets its bytes, and a time from one run or a roofline."""
    step = Step()
    sizes = range(200, 216)
    for n in sizes:
        x = step.give(torch.rand(n, n))
        step.add(aten.native_dropout.default, x, 0.5, True)
    start = time.monotonic()
    graph = profile(step.captured(), budget_s=1e-3).graph
    assert time.monotonic() - start < 2.0
    assert graph.meta["profile"].startswith(f"{len(sizes)} signatures, 0 timed")
    for n, op in zip(sizes, graph.ops, strict=True):
        assert op.workspace_bytes >= 4 * n * n
        assert op.time_ns > 0


def test_spent_budget_stops_long_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that a roofline puts beyond the end is not run at all, and the user is told."""
    monkeypatch.setattr(sampler, "_GRACE_S", 0.0)
    slow = replace(PRESETS["cpu"], overhead_ns=10**11)
    monkeypatch.setattr(Machine, "measured", lambda *_, **__: slow)
    with caplog.at_level(logging.WARNING):
        graph = profile(_step("half")[1], budget_s=1.0).graph
    assert "2 of 2 signatures not run" in caplog.text
    assert all(op.time_ns >= 10**11 for op in graph.ops)


def test_call_that_does_not_fit_is_not_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that takes more than the free memory gets a roofline time instead."""
    monkeypatch.setattr(sampler, "available_bytes", lambda _: 1000)
    with caplog.at_level(logging.WARNING):
        graph = profile(_step("half")[1]).graph
    assert "1000 B are free" in caplog.text
    assert "2 not runnable" in graph.meta["profile"]


def test_interrupted_profile_keeps_what_it_measured() -> None:
    """Ctrl-C in the middle: the next profile does not measure the first half again."""
    captured = _step("half", "dropout")[1]

    def stop(done: int, _total: int, _name: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(captured, progress=stop)
    seen: list[int] = []
    profile(captured, progress=lambda _done, total, _name: seen.append(total))
    assert seen[0] == 3


def test_untimed_entries_are_timed_later() -> None:
    """What one profile had no time for, the next one times, keeping the bytes."""
    captured = _step("conv", "norms")[1]
    short = profile(captured, budget_s=1e-6)
    assert ", 0 timed" in short.graph.meta["profile"]
    full = profile(captured)
    assert f"{len(full.graph.ops)} timed" in full.graph.meta["profile"]
    assert [op.workspace_bytes for op in full.graph.ops] == [
        op.workspace_bytes for op in short.graph.ops
    ]


def test_budget_must_be_positive() -> None:
    """A budget of zero is refused."""
    with pytest.raises(InputError, match="must be positive"):
        profile(_step("half")[1], budget_s=0)


def test_foreign_device_is_refused() -> None:
    """A step of a device that is not here needs the roofline."""
    captured = replace(_step("half")[1], device=torch.device("meta"))
    with pytest.raises(InputError, match="roofline"):
        profile(captured)


def test_op_that_fails_gets_a_roofline(caplog: pytest.LogCaptureFixture) -> None:
    """An op that cannot run on synthetic values is logged, and costs no error."""
    step = Step()
    x = step.give(torch.eye(8))
    step.add(aten.linalg_cholesky_ex.default, x, used=[0])
    step.add(aten.linalg_inv_ex.default, x, used=[0])
    captured = step.captured()
    broken = replace(captured.program.ops[1].call, target=_fails)  # type: ignore[type-var]
    ops = (captured.program.ops[0], replace(captured.program.ops[1], call=broken))
    captured = replace(captured, program=replace(captured.program, ops=ops))
    with caplog.at_level(logging.WARNING):
        graph = profile(captured).graph
    assert "cannot be measured alone (no such kernel)" in caplog.text
    assert graph.ops[1].time_ns > 0
    assert graph.ops[1].workspace_bytes == 0
    assert "1 not runnable" in graph.meta["profile"]


def _fails(*_: object) -> None:
    raise RuntimeError("no such kernel\nsecond line")


def test_alias_that_capture_did_not_see_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """An op that returns its argument where the graph has a new tensor is logged by name."""
    step = Step()
    step.add(aten._to_copy.default, step.give(torch.rand(8, 8)))
    captured = step.captured()
    call = captured.program.ops[0].call
    assert call is not None
    view = replace(
        captured.program.ops[0],
        call=replace(call, target=aten.view_as.default, args=(call.args[0], call.args[0])),
    )
    captured = replace(captured, program=replace(captured.program, ops=(view,)))
    with caplog.at_level(logging.WARNING):
        graph = profile(captured).graph
    assert "op0: t1 shares memory" in caplog.text
    assert graph.tensors[1].size_bytes == 8 * 8 * 4


def test_profiling_under_a_profiler_is_refused() -> None:
    """A running profiler hides memory: one error, not a warning for each op."""
    captured = _step("half")[1]
    with pytest.raises(MeterError):
        measure_peak(lambda: profile(captured, cache=False))


def test_write_back_and_snapshot_are_timed_and_change_nothing() -> None:
    """Buffer updates are timed on copies: the example's own tensors keep their values."""
    step = Step()
    counter, fresh = step.give(torch.arange(1000)), step.give(torch.ones(1000, dtype=torch.long))
    step.add(aten.add.Tensor, counter, fresh)
    captured = step.captured()
    update = replace(
        captured.program.ops[0],
        kind=Kind.WRITE_BACK,
        call=None,
        reads=(fresh.index,),
        writes=(),
        target_input=counter.index,
    )
    snapshot = replace(
        captured.program.ops[0], kind=Kind.SNAPSHOT, call=None, reads=(counter.index,), writes=(2,)
    )
    captured = replace(
        captured,
        program=replace(captured.program, ops=(snapshot,)),
    )
    assert profile(captured).graph.ops[0].time_ns > 0
    captured = replace(captured, program=replace(captured.program, ops=(update,)))
    assert profile(captured).graph.ops[0].time_ns > 0
    assert torch.equal(captured.example[0], torch.arange(1000))


def test_progress_is_reported() -> None:
    """Progress counts from zero to the number of signatures."""
    seen: list[tuple[int, int]] = []
    profile(_step("half")[1], progress=lambda done, total, _: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]
