"""Plans that are really trained with: measured peak, step time and bit parity beside the plan's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

import lowtide
from lowtide.commands.terminal import aligned
from lowtide.solver.units import format_bytes

from ..demo.study import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn


class Row(msgspec.Struct, frozen=True):
    """One method at one budget of one model.

    Attributes
    ----------
    model, ops
        The step.
    budget_bytes, method, status
        What was asked for, and what came out.
    predicted_bytes, measured_bytes
        Peak, resident bytes included; None without a plan.
    predicted_overhead, measured_overhead
        Extra time as a fraction of the plain step; measured: medians of processor time, steps in
        turns with the plain ones.
    equal
        Loss, gradients, buffers, parameters and random state equal those of plain PyTorch.
    """

    model: str
    ops: int
    budget_bytes: int
    method: str
    status: str
    predicted_bytes: int | None
    measured_bytes: int | None
    predicted_overhead: float | None
    measured_overhead: float | None
    equal: bool | None


def train(
    name: str,
    model: nn.Module,
    batches: Sequence[Any],
    methods: Sequence[str],
    budgets: Callable[[lowtide.Graph], Sequence[str | int]],
    *,
    time_limit: float,
    repeats: int,
    tell: Callable[[str], None],
) -> list[Row]:
    """Capture, plan by every method at every budget, replay and measure."""
    torch.set_num_threads(1)
    lowtide.keep_freed_memory()
    captured = lowtide.capture(model, batches[0], times="measured")
    graph = captured.graph
    asked = [str(b) for b in budgets(graph)]
    tell(f"{name}: {len(graph.ops)} ops, budgets {', '.join(asked)}")
    found = lowtide.compare(
        graph, asked, methods, time_limit=time_limit,
        on_row=lambda row, _: tell(f"{name}, {row.budget}, {row.method}: {row.status}"),
    )  # fmt: skip
    rows = []
    results = measure(model, captured, found.rows, batches, repeats=repeats, told=tell)
    for row, seen in zip(found.rows, results, strict=True):
        rows.append(
            Row(
                name,
                len(graph.ops),
                row.budget_bytes,
                row.method,
                row.status,
                row.peak_bytes,
                seen.peak_bytes,
                row.overhead,
                seen.overhead,
                seen.equal,
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """A line for each plan."""
    lines = [["model", "budget", "method", "peak", "measured", "extra time", "measured", "equal"]]
    for row in rows:
        cells = [row.model, format_bytes(row.budget_bytes), row.method]
        if row.predicted_bytes is None or row.measured_bytes is None:
            lines.append([*cells, row.status, "", "", "", ""])
            continue
        lines.append(
            [
                *cells, format_bytes(row.predicted_bytes), format_bytes(row.measured_bytes),
                f"{100 * (row.predicted_overhead or 0.0):.1f}%",
                f"{100 * (row.measured_overhead or 0.0):.1f}%", "yes" if row.equal else "NO",
            ]
        )  # fmt: skip
    return aligned(lines, right=(1, 3, 4, 5, 6))
