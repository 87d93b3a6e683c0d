"""How well a profile predicts what plans cost, beside a replay that computes nothing again."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import lowtide
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.bench import cpu_clock
from lowtide.frontends.torch.costs.meter import measure_step_time
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.measure.calibrate import calibrate
from lowtide.solver.errors import InfeasibleError, NoPlanError
from tests.plans import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

BUDGETS = ("80%", "60%", "40%")
METHODS = ("auto", "sqrt_n", "log_n")


@dataclass(frozen=True)
class Cost:
    """What one plan was predicted to cost, and what it did.

    Attributes
    ----------
    model, method, budget
        What was planned.
    predicted_percent
        Extra time by the profile, over the step that computes nothing again.
    measured_percent
        Extra time of a step over that of such a replay: the median over pairs of steps in turns.
    spread_percent
        Interquartile range of the pairs.
    """

    model: str
    method: str
    budget: str
    predicted_percent: float
    measured_percent: float
    spread_percent: float


def differences(found: Sequence[Cost]) -> tuple[float, float]:
    """Points between predicted and measured extra time: in the median, and at most."""
    points = [abs(cost.measured_percent - cost.predicted_percent) for cost in found]
    return statistics.median(points), max(points)


def costs(
    name: str,
    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]],
    *,
    pairs: int,
    budget_s: float,
    time_limit: float,
) -> Iterator[Cost]:
    """All plans of one model; a plan that another budget or method gave before is left out."""
    torch.manual_seed(0)
    model, batch = make()
    captured = profile(capture(model, batch, times="roofline"), budget_s=budget_s, cache=False)
    captured = calibrate(captured, batch, cache=False)
    graph = captured.graph
    base = lowtide.replay(captured, plan_of(graph, lowtide.Schedule.keep_everything(graph)))
    known: set[str] = set()
    for method in METHODS:
        for budget in BUDGETS:
            try:
                plan = lowtide.solve(graph, budget, method=method, time_limit=time_limit)
            except (InfeasibleError, NoPlanError):
                continue
            if str(plan.steps) in known or not plan.overhead:
                continue
            known.add(str(plan.steps))
            ratios = _ratios(base, lowtide.replay(captured, plan), batch, pairs)
            low, middle, high = statistics.quantiles(ratios, n=4)
            yield Cost(
                model=name,
                method=method,
                budget=budget,
                predicted_percent=100 * plan.overhead,
                measured_percent=100 * (middle - 1),
                spread_percent=100 * (high - low),
            )


def _ratios(
    one: nn.Module, other: nn.Module, batch: tuple[torch.Tensor, ...], pairs: int
) -> list[float]:
    """Time of a step of `other` over one of `one`, for pairs of neighbouring steps."""

    def step_of(module: nn.Module) -> Callable[[], None]:
        def step() -> None:
            for parameter in module.parameters():
                parameter.grad = None
            module(*batch).backward()

        return step

    steps = {"one": step_of(one), "other": step_of(other)}
    seconds = measure_step_time(steps, pairs, settle=True, clock=cpu_clock())
    return [b / a for a, b in zip(seconds["one"], seconds["other"], strict=True)]
