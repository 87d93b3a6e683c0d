"""Run it: `python -m experiments.demo [--out FOLDER] [--quick] [--json]`.

Trains a small GPT on text and a batch-norm CNN on letters under several budgets, prints what each
method predicts and what was measured, and writes plans, the curve pictures, reports and the
numbers.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table

import lowtide
from experiments.demo.data import letter_batches, text_batches
from experiments.demo.models import Cnn, Gpt
from experiments.demo.study import Measured, describe, measure, over_plain, plans_of, step_of
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.report.figures import figure_of, new_axes, save
from lowtide.report.words import label_of
from lowtide.solver.compare import Comparison
from lowtide.solver.files import write_atomic
from lowtide.solver.live import log_lines
from lowtide.solver.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from lowtide.solver.live import LogProgress

METHODS = ("sqrt_n", "log_n", "greedy", "auto")
COLUMNS = (
    "budget", "share", "method", "predicted peak", "measured peak", "predicted",
    "measured", "lower bound", "bit-equal",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A model, its data, and the budgets to try."""

    name: str
    model: nn.Module
    batches: Iterator[tuple[Any, ...]]
    budgets: tuple[str, ...]
    learning_rate: float


def subjects() -> list[Subject]:
    """The two models of the demonstration, freshly initialised."""
    torch.manual_seed(0)
    return [
        Subject("gpt", Gpt(), text_batches(8, 128), ("70%", "50%", "30%"), 1e-3),
        Subject("cnn", Cnn(), letter_batches(32), ("70%", "50%", "30%"), 2e-3),
    ]


def tell(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def run(subject: Subject, out: Path, *, quick: bool, log: LogProgress) -> dict[str, Any]:
    """Plan, replay and train one subject; returns its numbers."""

    def told(text: str) -> None:
        log.print(f"[{subject.name}] {text}")

    batches = [next(subject.batches) for _ in range(3)]
    told("capturing the training step and measuring its operators")
    captured = lowtide.capture(subject.model, batches[0], times="calibrated")
    graph = captured.graph
    lowtide.write_graph(graph, out / f"{subject.name}.graph.json.gz")
    told(f"{len(graph.ops)} ops, {len(graph.tensors)} tensors; planning")
    rows = plans_of(captured, subject.budgets, METHODS, 5.0 if quick else 12.0, told)
    results = measure(subject.model, captured, rows, batches, repeats=2 if quick else 9, told=told)
    plain = graph.resident_bytes + measure_peak(step_of(subject.model, batches[0])).peak_bytes
    base_peak = lowtide.simulate(graph, lowtide.Schedule.keep_everything(graph)).peak_bytes
    show(subject.name, results, base_peak, graph.resident_bytes, plain)
    write(subject.name, captured, results, base_peak, out)
    losses = train(subject, captured, results, steps=5 if quick else 40, log=log)
    return {
        "model": subject.name,
        "ops": len(graph.ops),
        "base_peak_bytes": base_peak,
        "plain_peak_bytes": plain,
        "resident_bytes": graph.resident_bytes,
        "rows": [numbers(result) for result in results],
        "losses": losses,
    }


def show(name: str, results: list[Measured], base_peak: int, resident: int, plain: int) -> None:
    """Print the table of one subject."""
    table = Table(
        title=f"{name}: {format_bytes(base_peak)} without recomputation (plain PyTorch: "
        f"{format_bytes(plain)}), of which {format_bytes(resident)} resident; extra time per step",
        caption="=: measured equals predicted to the byte; cannot: the smallest peak it reaches",
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "method" else "right")
    for result in results:
        table.add_row(*describe(result, base_peak, resident))
    Console(width=132).print(table)


def write(
    name: str, captured: lowtide.Captured, results: list[Measured], base_peak: int, out: Path
) -> None:
    """Plans of lowtide, the curve of all methods, and the report of the tightest plan."""
    graph = captured.graph
    rows = tuple(result.row for result in results)
    comparison = Comparison(
        graph_name=graph.name, graph_hash=graph.structure_hash, size_unit=graph.size_unit,
        time_unit=graph.time_unit, resident_bytes=graph.resident_bytes,
        base_peak_bytes=base_peak, base_time_ns=int(graph.arrays.time.sum()), rows=rows,
    )  # fmt: skip
    axes = lowtide.plot_curve(comparison, new_axes())
    for ending in ("svg", "png"):
        save(axes, out / f"{name}.curve.{ending}")
    figure_of(axes).clear()
    plans = [row.plan for row in rows if row.method == "auto" and row.plan is not None]
    for plan in plans:
        share = 100 * (plan.budget_bytes - plan.resident_bytes) / (base_peak - plan.resident_bytes)
        lowtide.write_plan(plan, out / f"{name}.{share:.0f}.plan.json.gz")
    if plans:
        tightest = min(plans, key=lambda plan: plan.budget_bytes)
        lowtide.write_report(graph, tightest, out / f"{name}.report.html")


def train(
    subject: Subject,
    captured: lowtide.Captured,
    results: list[Measured],
    steps: int,
    log: LogProgress,
) -> list[float]:
    """Train by the tightest plan of lowtide; returns the losses."""
    plans = [r.row.plan for r in results if r.row.method == "auto" and r.row.plan is not None]
    module = lowtide.replay(captured, min(plans, key=lambda plan: plan.budget_bytes))
    optimizer = torch.optim.AdamW(module.parameters(), lr=subject.learning_rate)
    losses: list[float] = []
    for step in range(steps):
        log.say(f"[{subject.name}] training by the tightest plan: step {step + 1} of {steps}")
        optimizer.zero_grad(set_to_none=True)
        loss = module(*next(subject.batches))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    print(
        f"{subject.name}: trained {steps} steps within "
        f"{format_bytes(module.plan.budget_bytes)}, loss {losses[0]:.3f} -> {losses[-1]:.3f}\n"
    )
    return losses


def numbers(result: Measured) -> dict[str, Any]:
    """One row for the JSON file."""
    row = result.row
    predicted, bound = (None, None) if row.plan is None else over_plain(row.plan)
    return {
        "method": row.method,
        "budget_bytes": row.budget_bytes,
        "status": row.status,
        "predicted_peak_bytes": row.peak_bytes,
        "measured_peak_bytes": result.peak_bytes,
        "predicted_overhead": predicted,
        "measured_overhead": result.overhead,
        "lower_bound_overhead": bound,
        "gap": row.gap,
        "seconds": row.seconds,
        "bit_equal": result.equal,
    }


def main() -> int:
    """Run both subjects; 1 if any replay differed or went over its budget."""
    parser = argparse.ArgumentParser(prog="python -m experiments.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--quick", action="store_true", help="fewer repeats and shorter solves")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON at the end")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # two cores: one thread gives the steadier clock
    lowtide.keep_freed_memory()
    begun = time.monotonic()
    with log_lines() as log:
        found = [run(it, options.out, quick=options.quick, log=log) for it in subjects()]
    data = msgspec.json.format(msgspec.json.encode(found), indent=1)
    write_atomic(options.out / "results.json", data + b"\n")
    bad = [
        (model["model"], row)
        for model in found
        for row in model["rows"]
        if row["measured_peak_bytes"] is not None
        and (not row["bit_equal"] or row["measured_peak_bytes"] > row["budget_bytes"])
    ]
    seconds = time.monotonic() - begun
    tell(f"done in {seconds:.0f} s; plans, pictures and reports are in {options.out}/")
    if options.json:
        print(data.decode())
    for name, row in bad:
        tell(f"{name}: {label_of(row['method'])} differs from plain PyTorch or is above its budget")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
