"""`lowtide compare`: every method at every budget, as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..solver.errors import InputError
from ..solver.units import expand_budgets, format_percent
from .options import BUDGETS_HELP, Backend, Gap, GraphFile, Json, Quiet, Seed, Threads, TimeLimit
from .progress import phases
from .solve import INTERRUPTED
from .target import writable
from .terminal import Terminal, aligned, stdout_to_stderr

if TYPE_CHECKING:
    from ..report.scale import Scale
    from ..solver.compare import Comparison, Row


def compare(
    graph: GraphFile,
    budget: Annotated[
        str,
        typer.Option("-b", "--budget", metavar="B,B,...", help=BUDGETS_HELP),
    ],
    methods: Annotated[
        str,
        typer.Option(
            "-m",
            "--methods",
            metavar="quick|published|all|M,M,...",
            help="Which methods to run: names, or groups of them.",
        ),
    ] = "quick",
    time_limit: TimeLimit = 60.0,
    gap: Gap = 1e-4,
    threads: Threads = None,
    seed: Seed = 0,
    backend: Backend = "highs",
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=1, metavar="N", help="Solves at the same time.")
    ] = 1,
    cluster: Annotated[
        str,
        typer.Option(metavar="local|dask|ray", help="Where solves run at the same time."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="A", help="Scheduler of the cluster, such as tcp://host:8786; else a local one."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep finished rows there, and do not run them again."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Overhead against budget as .svg, .png or .pdf."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare methods at several budgets.

    The time limit holds for each pair of method and budget. Exit code 0 even where some method
    misses some budget: that is a result.
    """
    from ..report.figures import SUFFIXES
    from ..report.scale import Scale
    from ..solver.compare import compare as run_compare
    from ..solver.compare import resolve_methods
    from ..solver.compiled import compile_parts
    from ..solver.files import read_graph
    from ..solver.milp.backends import backend as backend_named

    terminal = Terminal(json, quiet)
    if plot is not None:
        writable(plot, inputs=[graph], suffixes=SUFFIXES)
    backend_named(backend)  # unknown names are told before the search, not in it
    names = resolve_methods(methods)
    step = read_graph(graph)
    scale = Scale.of(step)
    budgets = expand_budgets(budget)
    if not budgets:
        raise InputError("no budget to compare at: give at least one, such as 50%")
    for text in budgets:
        scale.budget(text)
    done = 0

    def on_row(row: Row, total: int) -> None:
        nonlocal done
        done += 1
        terminal.log(f"{done} of {total}: {row.method} at {row.budget}: {outcome(row)}")
        now.say(f"{done} of {total} done")

    label = f"comparing on {step.name} ({len(step.ops):,} ops)"
    with phases(quiet=quiet) as now, stdout_to_stderr():
        if "auto" in names:
            compile_parts(now.begin)
        now.begin(label)
        comparison = run_compare(
            step,
            budgets,
            names,
            time_limit=time_limit,
            gap=gap,
            threads=threads,
            seed=seed,
            backend=backend,
            jobs=jobs,
            cluster=cluster,
            address=address,
            resume=resume,
            on_row=on_row,
        )
    if plot is not None:
        from ..report.curve_plot import plot_curve
        from ..report.figures import save

        save(plot_curve(comparison), plot)
        terminal.log(f"curve written to {plot}")
    terminal.product(comparison_table(comparison, scale), comparison_document(comparison, scale))
    return INTERRUPTED if comparison.interrupted else 0


def outcome(row: Row) -> str:
    """A row in a few words."""
    if row.plan is None:
        return row.status
    return f"overhead {format_percent(row.plan.overhead)} in {row.seconds:.1f} s, {row.status}"


def comparison_table(comparison: Comparison, scale: Scale) -> str:
    """A block of lines for each budget, all with the same columns."""
    header = ["method", "peak", "overhead", "bound", "gap", "seconds", "status"]
    cells = [
        [
            row.method,
            "" if row.peak_bytes is None else scale.memory(row.peak_bytes),
            percent(row.overhead),
            percent(row.bound),
            percent(row.gap),
            f"{row.seconds:.1f}" if row.plan is not None else "",
            status(row, scale),
        ]
        for row in comparison.rows
    ]
    first, *lines = aligned([header, *cells], right=(2, 3, 4, 5)).splitlines()
    blocks: list[str] = []
    budget = None
    for row, line in zip(comparison.rows, lines, strict=True):
        if row.budget_bytes != budget:
            budget = row.budget_bytes
            blocks += ["", f"budget {row.budget}: {scale.memory(budget)}", first]
        blocks.append(line)
    return "\n".join(blocks[1:])


def percent(value: float | None) -> str:
    """`3.398%`; nothing for None."""
    return "" if value is None else format_percent(value)


def status(row: Row, scale: Scale) -> str:
    """What is known of a row, with the smallest peak where its budget was missed."""
    if row.plan is not None:
        return f"{row.status} ({row.reason})" if row.reason else row.status
    words = row.status if row.proven or row.smallest_bytes is None else "no plan"
    if row.smallest_bytes is not None:
        what = "budget" if row.proven else "peak seen"
        return f"{words}: smallest {what} {scale.memory(row.smallest_bytes)}"
    return words


def comparison_document(comparison: Comparison, scale: Scale) -> dict[str, Any]:
    """The same for programs."""
    return {
        "graph": comparison.graph_name,
        "graph_hash": comparison.graph_hash,
        **scale.document("base_peak", comparison.base_peak_bytes),
        **scale.document("resident", comparison.resident_bytes),
        "base_time_ns": comparison.base_time_ns,
        "interrupted": comparison.interrupted,
        "rows": [
            {
                "method": row.method,
                "budget": row.budget,
                **scale.document("budget", row.budget_bytes),
                **scale.document("peak", row.peak_bytes),
                "time_ns": None if row.plan is None else row.plan.time_ns,
                "overhead": row.overhead,
                "overhead_bound": row.bound,
                "gap": row.gap,
                "seconds": row.seconds,
                "status": row.status,
                "reason": row.reason,
                **scale.document("smallest", row.smallest_bytes),
                "limiting_op": row.limiting_op,
            }
            for row in comparison.rows
        ],
    }
