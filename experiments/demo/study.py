"""One model through the whole path: capture, plan, replay, measure, compare with plain PyTorch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lowtide
from lowtide.frontends.torch.costs.meter import extra_time, measure_peak, measure_step_time
from lowtide.report.words import label_of
from lowtide.solver.baselines import BASELINES
from lowtide.solver.comparison import INFEASIBLE, Row
from lowtide.solver.sweep import METHOD as SWEPT
from lowtide.solver.sweep import agree
from lowtide.solver.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from lowtide import Captured, Plan

GAP = 1e-4  # at which a plan counts as optimal


@dataclass(frozen=True)
class Measured:
    """A row of the demonstration's table.

    Attributes
    ----------
    row
        The method at the budget, as `compare` reports it.
    peak_bytes
        Measured peak of the step, resident bytes included; None without a plan.
    overhead
        Measured (time - plain time) / plain time, the median over pairs of alternating steps.
    equal
        Loss, gradients, buffers, parameters and random state bit-equal to plain PyTorch.
    """

    row: Row
    peak_bytes: int | None
    overhead: float | None
    equal: bool | None


def plans_of(
    captured: Captured,
    budgets: Sequence[str],
    methods: Sequence[str],
    time_limit: float,
    told: Callable[[str], None],
) -> list[Row]:
    """Every method at every budget; fixed methods once, and lowtide at the peak they reach."""

    def run(budget: str | int, names: Sequence[str]) -> list[Row]:
        told(f"planning at {budget if isinstance(budget, str) else format_bytes(budget)}")
        return list(
            lowtide.compare(captured.graph, [budget], names, time_limit=time_limit, gap=GAP).rows
        )

    rows = run("max", ["keep_everything"])
    blocks = BASELINES["per_block"](captured.graph, None)
    if blocks is not None:
        rows += run(lowtide.simulate(captured.graph, blocks).peak_bytes, ["per_block", "auto"])
    for budget in budgets:
        rows += run(budget, methods)
    # Each budget is solved by itself: what one proves holds at the smaller ones as well.
    swept = [place for place, row in enumerate(rows) if row.method == SWEPT]
    agreed = agree(captured.graph, [rows[place] for place in swept], GAP)
    for place, row in zip(swept, agreed, strict=True):
        rows[place] = row
    return rows


def measure(
    model: nn.Module,
    captured: Captured,
    rows: Sequence[Row],
    batches: Sequence[Any],
    *,
    repeats: int,
    told: Callable[[str], None],
) -> list[Measured]:
    """Replay every plan: true peak, step time beside the plain step's, and bit parity."""
    results: list[Measured] = []
    known: dict[tuple[str, ...], Measured] = {}
    for row in rows:
        plan = row.plan
        if plan is None:
            results.append(Measured(row, None, None, None))
            continue
        if plan.steps not in known:
            told(f"replaying {label_of(row.method)} at {format_bytes(plan.budget_bytes)}")
            known[plan.steps] = _measure(model, captured, row, plan, batches, repeats)
        seen = known[plan.steps]
        results.append(Measured(row, seen.peak_bytes, seen.overhead, seen.equal))
    return results


def _measure(
    model: nn.Module, captured: Captured, row: Row, plan: Plan, batches: Sequence[Any], repeats: int
) -> Measured:
    module = lowtide.replay(captured, plan)
    checked = lowtide.verify(model, module, batches, measure=False)
    plain, replayed = (step_of(it, batches[0]) for it in (model, module))
    peak = measure_peak(replayed).peak_bytes
    model.zero_grad(set_to_none=True)
    # Processor time: both run on one thread, and other work on the machine does not count.
    seconds = measure_step_time(
        {"plain": plain, "replay": replayed}, repeats, settle=True, clock=time.process_time_ns
    )
    extra = extra_time(seconds["replay"], seconds["plain"])
    return Measured(row, plan.resident_bytes + peak, extra, checked.ok)


def over_plain(plan: Plan) -> tuple[float, float | None]:
    """Predicted extra time over plain PyTorch, which is what is measured, and its lower bound."""
    if plan.overhead_over_plain is None:
        return plan.overhead, plan.overhead_bound
    return plan.overhead_over_plain, plan.bound_over_plain


def step_of(module: nn.Module, batch: tuple[Any, ...]) -> Callable[[], None]:
    """Forward and backward of one batch, with no gradients before or after."""

    def step() -> None:
        module(*batch).backward()
        module.zero_grad(set_to_none=True)

    return step


def describe(measured: Measured, base_peak: int, resident: int) -> tuple[str, ...]:
    """The cells of one line of the table."""
    row = measured.row
    share = 100.0 * (row.budget_bytes - resident) / max(1, base_peak - resident)
    budget = "-" if row.method == "keep_everything" else f"{format_bytes(row.budget_bytes)}"
    if row.plan is None:
        why = "cannot" if row.status == INFEASIBLE else row.status
        if row.smallest_bytes is not None:
            why = f"cannot: {format_bytes(row.smallest_bytes)}"
        return (budget, f"{share:.0f}%", label_of(row.method), why, "", "", "", "", "")
    predicted, least = over_plain(row.plan)
    bound = "" if least is None else f"{100 * least:.2f}%"
    assert measured.peak_bytes is not None
    assert measured.overhead is not None
    exact = measured.peak_bytes == row.plan.peak_bytes
    return (
        budget,
        f"{share:.0f}%",
        label_of(row.method),
        format_bytes(row.plan.peak_bytes),
        format_bytes(measured.peak_bytes) + (" =" if exact else ""),
        f"{100 * predicted:.2f}%",
        f"{100 * measured.overhead:.1f}%",
        bound,
        "yes" if measured.equal else "NO",
    )
