"""Rows of the study: one model under one budget."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lowtide
from lowtide.frontends.torch.batches import split_batch
from lowtide.frontends.torch.costs.bench import cpu_clock
from lowtide.frontends.torch.costs.meter import extra_time, measure_peak, measure_step_time
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.measure.calibrate import calibrate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from tests.models import Case

BUDGETS = 10


@dataclass(frozen=True)
class Row:
    """What was predicted and measured.

    Attributes
    ----------
    model, ops
        Name, and number of ops of its step.
    budget_bytes
        The budget: ten in even steps, from the peak without recomputation to the smallest for
        which a plan was found.
    resident_bytes, plain_bytes
        Resident bytes, and the predicted peak without recomputation.
    predicted_bytes, measured_bytes
        Peak, resident bytes included.
    predicted_percent, bound_percent
        Overhead of the plan, and its lower bound.
    over_plain_percent
        Predicted extra time over a step of plain PyTorch, before any step of the plan was run.
    timed_percent
        The same once the plans of the table were timed (`lowtide.time_plans`): no prediction from
        other plans, but of steps in another module and at another time.
    measured_percent
        Measured extra time over a step of plain PyTorch, in modules of their own: the median over
        rounds, in processor time.
    scheduled_percent
        The same over a replay without recomputation, which `predicted_percent` speaks of.
    gap_percent, solve_seconds, status
        Gap of the plan, seconds that it took, and what is known of it.
    bits_equal
        Whether losses, gradients, parameters, buffers and random state of three AdamW steps equal
        those of plain PyTorch.
    """

    model: str
    ops: int
    budget_bytes: int
    resident_bytes: int
    plain_bytes: int
    predicted_bytes: int
    measured_bytes: int
    predicted_percent: float
    bound_percent: float
    over_plain_percent: float
    timed_percent: float
    measured_percent: float
    scheduled_percent: float
    gap_percent: float
    solve_seconds: float
    status: str
    bits_equal: bool


def study(
    name: str, make: Callable[[str], Case], *, time_limit: float, gap: float, repeats: int
) -> Iterator[Row]:
    """All budgets of one model, the largest first."""
    case = make(name)
    captured = lowtide.capture(case.model, case.batch(0), case.loss_fn)
    # No cache: an earlier run may have timed these plans, and they are to be predicted here.
    captured = calibrate(profile(captured, budget_s=30.0), case.batch(0), cache=False)
    graph = captured.graph
    base = lowtide.solve(graph, "max")
    curve = lowtide.sweep(graph, BUDGETS, time_limit=time_limit, gap=gap)
    unplanned = lowtide.replay(captured, base)
    plans = [row.plan for row in reversed(curve.rows) if row.plan is not None]
    assert len(plans) == BUDGETS, "the smallest of the budgets was found with a plan"
    _, timed = lowtide.time_plans(captured, case.batch(0), plans, cache=False)
    for plan, same in zip(plans, timed, strict=True):
        lowtide.check(graph, plan)
        module = lowtide.replay(captured, plan)
        batches = [case.batch(seed) for seed in range(3)]
        found = lowtide.verify(case.model, module, batches, measure=False)
        seconds = times(case, module, unplanned, repeats)
        yield Row(
            model=name,
            ops=len(graph.ops),
            budget_bytes=plan.budget_bytes,
            resident_bytes=graph.resident_bytes,
            plain_bytes=base.peak_bytes,
            predicted_bytes=plan.peak_bytes,
            measured_bytes=graph.resident_bytes + peak(module, batches[0]),
            predicted_percent=100 * plan.overhead,
            bound_percent=100 * (plan.overhead_bound or 0.0),
            over_plain_percent=100 * (plan.overhead_over_plain or 0.0),
            timed_percent=100 * (same.overhead_over_plain or 0.0),
            measured_percent=100 * extra_time(seconds["replayed"], seconds["plain"]),
            scheduled_percent=100 * extra_time(seconds["replayed"], seconds["unplanned"]),
            gap_percent=100 * (plan.gap or 0.0),
            solve_seconds=plan.solve_seconds,
            status=plan.status.value,
            bits_equal=found.ok,
        )


def monotone(rows: Sequence[Row]) -> bool:
    """Whether no measured peak exceeds its budget, or that of a larger budget of the same model."""
    within = all(row.measured_bytes <= row.budget_bytes for row in rows)
    falling = all(
        small.measured_bytes <= large.measured_bytes
        for large in rows
        for small in rows
        if large.model == small.model and large.budget_bytes >= small.budget_bytes
    )
    return within and falling


def step_of(module: nn.Module, batch: Any, loss_fn: Any = None) -> Callable[[], Any]:
    """Forward and backward, as a function; gradients are cleared first."""
    _, args, kwargs = split_batch(batch)

    def step() -> Any:
        for parameter in module.parameters():
            parameter.grad = None
        out = module(*args, **kwargs)
        loss = out if loss_fn is None else loss_fn(out)
        getattr(loss, "loss", loss).backward()
        return out

    return step


def peak(module: nn.Module, batch: Any) -> int:
    """Measured bytes of a step beyond the resident ones."""
    twin = copy.deepcopy(module)
    step = step_of(twin, batch)
    step()
    for parameter in twin.parameters():
        parameter.grad = None
    return measure_peak(step).peak_bytes


def times(
    case: Case, module: nn.Module, unplanned: nn.Module, repeats: int
) -> dict[str, list[float]]:
    """Seconds of plain, replayed and unplanned steps, in turns."""
    batch = case.batch(0)
    steps = {
        "plain": step_of(copy.deepcopy(case.model), batch, case.loss_fn),
        "replayed": step_of(copy.deepcopy(module), batch),
        "unplanned": step_of(copy.deepcopy(unplanned), batch),
    }
    return measure_step_time(steps, repeats, warmup=3, settle=True, clock=cpu_clock())
