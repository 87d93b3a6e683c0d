"""`lowtide sweep`: the best plan for each of many budgets, as a curve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..solver.errors import InfeasibleError, InputError
from ..solver.units import expand_budgets
from .compare import comparison_document, outcome, percent, status
from .options import (
    BUDGETS_HELP,
    Backend,
    Gap,
    GraphFile,
    Json,
    Moves,
    Order,
    Quiet,
    Seed,
    Threads,
    TimeLimit,
)
from .progress import phases
from .solve import INTERRUPTED
from .target import writable
from .terminal import Terminal, aligned, stdout_to_stderr

if TYPE_CHECKING:
    from ..report.scale import Scale
    from ..solver.comparison import Comparison, Row

INFEASIBLE = InfeasibleError.exit_code


def sweep(
    graph: GraphFile,
    budget: Annotated[
        str, typer.Option("-b", "--budget", metavar="B,B,...", help=BUDGETS_HELP)
    ] = "20%..90%:8",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Where to write the plans."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Overhead against budget as .svg, .png or .pdf."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Keep finished rows there, and do not solve them again."
        ),
    ] = None,
    time_limit: TimeLimit = 60.0,
    gap: Gap = 1e-4,
    threads: Threads = None,
    seed: Seed = 0,
    backend: Backend = "highs",
    order: Order = "any",
    moves: Moves = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Plan many budgets of one graph, each solve knowing what the others found.

    The time limit holds for each budget; solves end as soon as their gap is closed. More memory
    never costs time on the curve. Exit code 3 if no budget could be met.
    """
    from ..report.figures import SUFFIXES
    from ..report.scale import Scale
    from ..solver.compiled import compile_parts
    from ..solver.files import read_graph, write_plan
    from ..solver.milp.backends import backend as backend_named
    from ..solver.store import Store
    from ..solver.sweep import sweep as run_sweep

    terminal = Terminal(json, quiet)
    if plot is not None:
        writable(plot, inputs=[graph], suffixes=SUFFIXES)
    backend_named(backend)  # unknown names are told before the search, not in it
    budgets = expand_budgets(budget)
    if not budgets:
        raise InputError("no budget to sweep over: give at least one, such as 20%..90%:8")
    step = read_graph(graph)
    scale = Scale.of(step)
    for text in budgets:
        scale.budget(text)
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {output}: {error.strerror or error}") from None
        for text in budgets:
            writable(output / plan_name(graph, text), inputs=[graph])
    store = None
    if resume is not None:
        limits = {"time_limit": time_limit, "gap": gap, "threads": threads, "seed": seed}
        store = Store(resume, step, **limits, backend=backend, order=order, moves=moves)
    done = 0

    def on_row(row: Row, total: int) -> None:
        nonlocal done
        done += 1
        terminal.log(f"{done} of {total}: {row.budget}: {outcome(row)}")
        now.say(f"{done} of {total} done")

    label = f"sweeping over {len(budgets)} budgets of {step.name} ({len(step.ops):,} ops)"
    with phases(quiet=quiet) as now, stdout_to_stderr():
        compile_parts(now.begin)
        now.begin(label)
        found = run_sweep(
            step,
            budgets,
            time_limit=time_limit,
            gap=gap,
            threads=threads,
            seed=seed,
            backend=backend,
            order=order,
            moves=moves,
            progress=now,
            on_row=on_row,
            store=store,
        )
    if output is not None:
        for row in found.rows:
            if row.plan is not None:
                write_plan(row.plan, output / plan_name(graph, row.budget))
        terminal.log(f"{sum(row.plan is not None for row in found.rows)} plans in {output}")
    if plot is not None:
        from ..report.curve_plot import plot_curve
        from ..report.figures import save

        save(plot_curve(found), plot)
        terminal.log(f"curve written to {plot}")
    terminal.product(sweep_table(found, scale), comparison_document(found, scale))
    if found.interrupted:
        return INTERRUPTED
    return 0 if any(row.plan is not None for row in found.rows) else INFEASIBLE


def sweep_table(found: Comparison, scale: Scale) -> str:
    """One line for each budget."""
    header = ["budget", "in full", "peak", "overhead", "bound", "gap", "seconds", "status"]
    cells = [
        [
            row.budget,
            scale.memory(row.budget_bytes),
            "" if row.peak_bytes is None else scale.size(row.peak_bytes),
            percent(row.overhead),
            percent(row.bound),
            percent(row.gap),
            f"{row.seconds:.1f}",
            status(row, scale),
        ]
        for row in found.rows
    ]
    return aligned([header, *cells], right=(2, 3, 4, 5, 6))


def plan_name(graph: Path, budget: str) -> str:
    """`step.60pct.plan.json` for `step.graph.json` at 60%."""
    stem = graph.name.removesuffix(".gz").removesuffix(".json").removesuffix(".graph")
    return f"{stem}.{budget.replace('%', 'pct')}.plan.json"
