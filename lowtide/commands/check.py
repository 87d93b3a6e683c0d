"""`lowtide check`: is a plan what it claims to be?"""

from __future__ import annotations

from ..solver.errors import CheckError
from .options import GraphFile, Json, PlanFile, Quiet
from .summary import plan_document, plan_rows
from .terminal import Terminal, complain, facts


def check(graph: GraphFile, plan: PlanFile, json: Json = False, quiet: Quiet = False) -> int:
    """Check a plan against its graph, independently of the solver.

    Every read, the peak, the time and the budget are recomputed. Exit code 1 with the first
    violation if something is wrong.
    """
    from ..report.scale import Scale
    from ..solver.check import check as run_check
    from ..solver.files import read_graph, read_plan

    terminal = Terminal(json, quiet)
    step = read_graph(graph)
    candidate = read_plan(plan)
    scale = Scale.of(step)
    violation: str | None = None
    try:
        run_check(step, candidate)
    except CheckError as error:
        violation = str(error)
    document = {
        "valid": violation is None,
        "violation": violation,
        **plan_document(candidate, scale),
    }
    rows = [("check", violation or "valid"), *plan_rows(candidate, scale)]
    if violation is None:
        terminal.product(facts(rows), document)
        return 0
    if json:
        terminal.product(facts(rows), document)
    complain(f"{plan} does not fit {graph}: {violation}")
    return CheckError.exit_code
