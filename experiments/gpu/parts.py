"""The parts of the study; each yields its rows as they come."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import lowtide
from lowtide.frontends.torch.costs.meter import measure_peak, measure_step_time, medians
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.assemble import Origin, assemble
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from .setting import Setting, gpt2, resnet50

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from lowtide.frontends.torch.captured import Captured
    from lowtide.solver.plan import Plan
    from tests.models import Case

Row = dict[str, Any]

_ROOT = Path(__file__).resolve().parents[2]
_PARITY = ("mlp", "cnn", "gpt", "gpt2", "bert", "unet")
_BUDGETS = ("80%", "60%", "40%")
_TESTS_S = 150.0
_SOLVE_S = 10.0


def environment(setting: Setting) -> Iterator[Row]:
    """Versions, and the device."""
    row: Row = {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": str(setting.device),
        "small": setting.small,
    }
    if setting.device.type == "cuda":
        properties = torch.cuda.get_device_properties(setting.device)
        row["name"], row["memory_bytes"] = properties.name, properties.total_memory
        cudnn: Any = torch.backends.cudnn
        row["cudnn"] = cudnn.version()
        row["devices"] = torch.cuda.device_count()
    yield row


def tests(setting: Setting) -> Iterator[Row]:
    """The tests marked gpu, which skip without one."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    folders = ["tests/runtime", "tests/frontends"]
    seconds = max(30.0, min(_TESTS_S, setting.left))
    try:
        done = subprocess.run(
            [*command, *folders], cwd=_ROOT, capture_output=True, text=True, timeout=seconds,
            env=dict(os.environ), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        text = error.stdout.decode() if isinstance(error.stdout, bytes) else (error.stdout or "")
        yield {"error": f"not done within {seconds:.0f} s", "tail": text[-3000:]}
        return
    row: Row = {"exit": done.returncode, "last": done.stdout.strip().splitlines()[-1:]}
    if done.returncode not in (0, 5):
        row["error"] = "tests failed"
        row["tail"] = done.stdout[-8000:] + done.stderr[-2000:]
    yield row


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Deterministic kernels where there are some."""
    before = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


def parity(setting: Setting) -> Iterator[Row]:
    """Bits of three steps, predicted and measured peaks: without recomputation and at 60%.

    `repeatable` tells whether plain PyTorch agrees with itself from run to run: where it does not,
    nothing can be expected of a replay.
    """
    for name in _PARITY[:2] if setting.small else _PARITY:
        for budget in ("100%", "60%"):
            if setting.left < 20:
                yield {"model": name, "budget": budget, "skipped": "no time left"}
                continue
            row: Row = {"model": name, "budget": budget}
            with _noted(row), exact():
                row.update(_parity(setting.case(name), budget, _solve_seconds(setting)))
            yield row


def _parity(case: Case, budget: str, seconds: float) -> Row:
    captured = lowtide.capture(case.model, case.batch(0), case.loss_fn, times="calibrated")
    plan = _plan(captured, budget, seconds)
    module = replay(captured, plan)
    batches = [case.batch(i) for i in range(3)]
    found = verify(case.model, module, batches, repeats=3)
    twin = verify(
        case.model, replay(captured, _plan(captured, "100%", 0.0)), batches, measure=False
    )
    return {
        "equal": found.ok,
        "first_difference": found.first_difference,
        "equal_without_recomputation": twin.ok,
        "repeatable": _repeatable(case, captured),
        "recomputed_ops": plan.schedule.recomputes(),
        "predicted_peak": found.predicted_peak_bytes,
        "measured_peak": found.replay_peak_bytes,
        "plain_peak": found.plain_peak_bytes,
        "tensors": len(captured.graph.tensors),
        "library_bytes": captured.graph.meta.get("library_bytes", "0"),
        "predicted_overhead": plan.overhead,
        "plain_ms": found.plain_seconds * 1e3,
        "replay_ms": found.replay_seconds * 1e3,
    }


def _repeatable(case: Case, captured: Captured) -> bool:
    """Whether the gradients of plain PyTorch are the same in two runs."""
    found = []
    for _ in range(2):
        model = copy.deepcopy(case.model)
        torch.manual_seed(3)
        batch = case.batch(0)
        args, kwargs = ((), batch) if isinstance(batch, dict) else (tuple(batch), {})
        out = model(*args, **kwargs)
        loss = out.loss if hasattr(out, "loss") else out
        (loss if case.loss_fn is None else case.loss_fn(loss)).backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def overhead(setting: Setting) -> Iterator[Row]:
    """Extra time and peaks of GPT-2 small and ResNet-50, plain, replayed, at several budgets."""
    steps: dict[str, tuple[Callable[[Setting], tuple[nn.Module, Any]], torch.dtype | None]] = {
        "gpt2": (gpt2, None),
        "gpt2 bfloat16": (gpt2, torch.bfloat16),
        "resnet50": (resnet50, None),
    }
    for name, (make, dtype) in steps.items():
        row: Row = {"model": name}
        if setting.left < 45:
            yield {**row, "skipped": "no time left"}
            continue
        with _noted(row):
            autocast: Any = (
                torch.autocast(setting.device.type, dtype=dtype)
                if dtype is not None
                else contextlib.nullcontext()
            )
            for found in _overheads(setting, *make(setting), autocast):
                yield {**row, **found}
        if "error" in row:
            yield row
        gc.collect()
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()


def _overheads(setting: Setting, model: nn.Module, batch: Any, autocast: Any) -> Iterator[Row]:
    with autocast:
        captured = lowtide.capture(model, batch, times="calibrated")
    graph = captured.graph
    yield {
        "ops": len(graph.ops),
        "resident": graph.resident_bytes,
        "keep_everything_peak": simulate(graph, Schedule.keep_everything(graph)).peak_bytes,
        "sum_of_op_times_ms": sum(op.time_ns for op in graph.ops) / 1e6,
        "profile": graph.meta.get("profile"),
    }

    def step(call: Callable[..., Any]) -> Any:
        for parameter in model.parameters():
            parameter.grad = None
        with autocast:
            out = call(**batch)
        out["loss"].backward()  # the output is held until the end, as the plan counts it

    for budget in ("100%", *_BUDGETS):
        row: Row = {"budget": budget}
        if setting.left < 15:
            yield {**row, "skipped": "no time left"}
            continue
        with _noted(row):
            plan = _plan(captured, budget, _solve_seconds(setting))
            calls = {"plain": model, "replay": replay(captured, plan)}
            for what, call in calls.items():
                step(call)
                for parameter in model.parameters():
                    parameter.grad = None
                row[f"{what}_peak"] = measure_peak(partial(step, call), setting.device).peak_bytes
            row["predicted_peak"] = plan.peak_bytes - graph.resident_bytes
            row["predicted_overhead"], row["gap"] = plan.overhead, plan.gap
            row["predicted_over_plain"] = plan.overhead_over_plain
            row["solve_seconds"] = plan.solve_seconds
            seconds = medians(
                measure_step_time(
                    {what: partial(step, call) for what, call in calls.items()},
                    3 if setting.small else 10,
                    device=setting.device,
                )
            )
            row["plain_ms"], row["replay_ms"] = (seconds[w] * 1e3 for w in calls)
            row["measured_overhead"] = seconds["replay"] / seconds["plain"] - 1
        yield row


def _plan(captured: Captured, budget: str, seconds: float) -> Plan:
    """A plan; without recomputation for 100%."""
    graph = captured.graph
    if budget != "100%":
        return lowtide.solve(graph, budget, time_limit=seconds)
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    return assemble(graph, peak, range(len(graph.ops)), Origin("keep_everything", 0, 1, 0.0))


def _solve_seconds(setting: Setting) -> float:
    return 3.0 if setting.small else max(3.0, min(_SOLVE_S, setting.left / 10))


@contextlib.contextmanager
def _noted(row: Row) -> Iterator[None]:
    """Write what is raised into the row; other rows go on."""
    try:
        yield
    except (InfeasibleError, NoPlanError) as error:
        row["cannot"] = str(error)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
