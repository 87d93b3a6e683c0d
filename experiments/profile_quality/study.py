"""One row of the study: profile a step, replay it in base order, compare."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import lowtide
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.bench import cpu_clock
from lowtide.frontends.torch.costs.machine import Machine
from lowtide.frontends.torch.costs.meter import measure_peak, measure_step_time, medians
from lowtide.frontends.torch.costs.profile import profile
from lowtide.frontends.torch.costs.roofline import roofline_times
from tests.plans import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@dataclass(frozen=True)
class Row:
    """What was predicted and measured for one model; times in milliseconds.

    Attributes
    ----------
    ops, signatures
        Ops of the graph, and distinct ones.
    profile_s
        Seconds that the profile took, without cache.
    sum_ms, roofline_ms
        Sums of measured and of roofline op times.
    replay_ms, eager_ms
        Median step in base order by the replay, and of the plain module: processor time with one
        thread (what the profile measures then too), else wall time.
    weighted_error
        Sum of |roofline - measured| over the sum of measured op times.
    log_error
        Median over ops of |log(roofline / measured)|.
    predicted_peak, measured_peak
        Bytes of the base order beyond the resident ones.
    """

    model: str
    ops: int
    signatures: int
    profile_s: float
    sum_ms: float
    roofline_ms: float
    replay_ms: float
    eager_ms: float
    weighted_error: float
    log_error: float
    predicted_peak: int
    measured_peak: int


def study(
    name: str,
    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]],
    *,
    repeats: int,
    budget_s: float,
) -> Row:
    """Measure one model."""
    torch.manual_seed(0)
    model, batch = make()
    captured = capture(model, batch, times="roofline")
    machine = Machine.measured(captured.device, cache=False)
    start = time.perf_counter()
    profiled = profile(captured, budget_s=budget_s, cache=False)
    profile_s = time.perf_counter() - start
    graph = profiled.graph
    plan = plan_of(graph, lowtide.Schedule.keep_everything(graph))
    module = lowtide.replay(profiled, plan)

    def step(of: nn.Module) -> Callable[[], None]:
        def run() -> None:
            of(*batch).backward()

        return run

    def clear() -> None:
        for parameter in model.parameters():
            parameter.grad = None

    step(module)()
    clear()
    measured = measure_peak(step(module)).peak_bytes
    clear()
    steps = {"replay": _then(step(module), clear), "eager": _then(step(model), clear)}
    seconds = medians(measure_step_time(steps, repeats=repeats, clock=cpu_clock()))
    pairs = [
        (op.time_ns, guess)
        for op, guess in zip(graph.ops, roofline_times(captured, machine), strict=True)
        if op.time_ns > 0 and guess > 0
    ]
    total = sum(op.time_ns for op in graph.ops)
    return Row(
        model=name,
        ops=len(graph.ops),
        signatures=int(graph.meta["profile"].split()[0]),
        profile_s=profile_s,
        sum_ms=total / 1e6,
        roofline_ms=sum(guess for _, guess in pairs) / 1e6,
        replay_ms=seconds["replay"] * 1e3,
        eager_ms=seconds["eager"] * 1e3,
        weighted_error=sum(abs(guess - real) for real, guess in pairs) / total,
        log_error=statistics.median(abs(math.log(guess / real)) for real, guess in pairs),
        predicted_peak=plan.peak_bytes - graph.resident_bytes,
        measured_peak=measured,
    )


def _then(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        second()

    return run
