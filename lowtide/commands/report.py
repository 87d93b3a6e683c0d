"""`lowtide report`: a plan as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import GraphFile, Json, PlanFile, Quiet
from .summary import plan_document
from .target import writable
from .terminal import Terminal


def report(
    graph: GraphFile,
    plan: PlanFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")
    ],
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Write a page that shows what a plan does.

    Memory over the step, what is kept and what is computed again, addresses in one buffer, who
    fills the memory at the peak. The page is one file and needs no network. With --json the plan's
    figures go to stdout.
    """
    from ..report.report import write_report
    from ..report.scale import Scale
    from ..solver.files import read_graph, read_plan

    writable(output, inputs=[graph, plan], suffixes=(".html", ".htm"))
    step, made = read_graph(graph), read_plan(plan)
    write_report(step, made, output)
    terminal = Terminal(json, quiet)
    terminal.log(f"report written to {output}")
    if json:
        terminal.product("", {**plan_document(made, Scale.of(step)), "report": str(output)})
    return 0
