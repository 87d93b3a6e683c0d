"""`lowtide report`: a plan as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import GraphFile, PlanFile, Quiet
from .target import writable
from .terminal import Terminal


def report(
    graph: GraphFile,
    plan: PlanFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")
    ],
    quiet: Quiet = False,
) -> int:
    """Write a page that shows what a plan does.

    Memory over the step, what is kept and what is computed again, who fills the memory at the
    peak. The page is one file and needs no network.
    """
    from ..report.report import write_report
    from ..solver.files import read_graph, read_plan

    writable(output, inputs=[graph, plan], suffixes=(".html", ".htm"))
    write_report(read_graph(graph), read_plan(plan), output)
    Terminal(quiet=quiet).log(f"report written to {output}")
    return 0
