"""`lowtide checkpoint`: a plan by a rule of thumb instead of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..solver.errors import InfeasibleError, InputError
from .options import GraphFile, Json, Quiet
from .solve import infeasible_document
from .summary import plan_document, plan_rows
from .target import writable
from .terminal import Terminal, complain, facts


def checkpoint(
    graph: GraphFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The plan to write.")
    ],
    segments: Annotated[
        str | None,
        typer.Option(
            metavar="N|MODULE,...",
            help="So many equal segments, or module names: each is a segment, the rest is kept.",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="cheap",
            help="Drop the results of normalisations, activations, dropout and pooling.",
        ),
    ] = None,
    border_bytes: Annotated[
        str | None,
        typer.Option(metavar="B", help="A border once so many bytes were made, such as 64MiB."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Recursion so many levels deep.")
    ] = None,
    branches: Annotated[
        int, typer.Option(min=1, metavar="N", help="Borders a level of the recursion.")
    ] = 1,
    budget: Annotated[
        str | None, typer.Option("-b", "--budget", metavar="B", help="What the plan has to fit.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Plan by the rules of Chen et al. 2016: give exactly one of
    --segments, --mirror, --border-bytes and --depth."""
    from ..report.scale import Scale
    from ..solver.checkpoint import checkpoint as run_checkpoint
    from ..solver.files import read_graph, write_plan
    from ..solver.units import parse_amount, whole_number

    terminal = Terminal(json, quiet)
    writable(output, inputs=[graph])
    step = read_graph(graph)
    scale = Scale.of(step)
    limit = None if border_bytes is None else parse_amount(border_bytes, "--border-bytes")
    rules = {
        "--segments": segments, "--mirror": mirror, "--border-bytes": border_bytes, "--depth": depth
    }  # fmt: skip
    given = [name for name, value in rules.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"give exactly one of {', '.join(rules)}, not {', '.join(given) or 'none'}"
        )
    names = None if segments is None else [name.strip() for name in segments.split(",")]
    number = None if segments is None else whole_number(segments.strip())
    amount = None if budget is None else scale.budget(budget)
    try:
        plan = run_checkpoint(
            step,
            segments=names if number is None else number,
            mirror=mirror,
            border_bytes=limit,
            depth=depth,
            branches=branches,
            budget=amount,
        )
    except InfeasibleError as error:
        complain(f"infeasible: {error}")
        if json:
            terminal.product("", infeasible_document(error, amount or 0, "checkpoint", scale))
        return error.exit_code
    write_plan(plan, output)
    rows = [*plan_rows(plan, scale), ("plan", str(output))]
    terminal.product(facts(rows), {**plan_document(plan, scale), "plan": str(output)})
    return 0
