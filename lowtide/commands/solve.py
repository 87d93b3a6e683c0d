"""`lowtide solve`: the fastest schedule of a graph under a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..solver.errors import InfeasibleError, NoPlanError
from ..solver.units import doubt
from .options import (
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
from .progress import watch
from .summary import plan_document, plan_rows
from .target import writable
from .terminal import Terminal, complain, facts, stdout_to_stderr

if TYPE_CHECKING:
    from ..report.scale import Scale

TIME_LIMIT = 4
INTERRUPTED = 130


def solve(
    graph: GraphFile,
    budget: Annotated[
        str,
        typer.Option(
            "-b",
            "--budget",
            metavar="B",
            help="6GiB or 6e9: the whole device memory of the step; 60%: resident bytes + 60% of "
            "what the rest takes without recomputation.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The plan to write.")
    ],
    method: Annotated[
        str, typer.Option("-m", "--method", metavar="M", help="auto, milp or a published method.")
    ] = "auto",
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
    """Find the fastest schedule that fits a memory budget.

    Ctrl-C and the time limit end the search with the best plan so far, and how far from the best
    possible it can be.
    """
    from ..report.scale import Scale
    from ..solver.compare import resolve_methods
    from ..solver.files import read_graph, write_plan
    from ..solver.milp.backends import backend as backend_named
    from ..solver.plan import Stop
    from ..solver.solve import solve as run_solve

    terminal = Terminal(json, quiet)
    writable(output, inputs=[graph])
    (name, *more) = resolve_methods(method)
    if more:
        raise typer.BadParameter(f"{method!r} is more than one method: use lowtide compare")
    backend_named(backend)  # an unknown name is told before the search, not in it
    step = read_graph(graph)
    scale = Scale.of(step)
    amount = scale.budget(budget)
    label = f"solving {step.name} ({len(step.ops):,} ops) under {scale.memory(amount)}"
    try:
        with watch(label, quiet=quiet) as progress, stdout_to_stderr():
            plan = run_solve(
                step,
                amount,
                method=name,
                time_limit=time_limit,
                gap=gap,
                threads=threads,
                seed=seed,
                backend=backend,
                order=order,
                moves=moves,
                progress=progress,
            )
    except InfeasibleError as error:
        complain(infeasible_line(error, amount, name, scale))
        if json:
            terminal.product("", infeasible_document(error, amount, name, scale))
        return error.exit_code
    except NoPlanError as error:
        complain(str(error))
        if json:
            document = {"method": name, "status": "no plan", **scale.document("budget", amount)}
            terminal.product("", document)
        return error.exit_code
    write_plan(plan, output)
    rows = [*plan_rows(plan, scale), ("plan", str(output))]
    terminal.product(facts(rows), {**plan_document(plan, scale), "plan": str(output)})
    if plan.stopped_by is Stop.INTERRUPTED:
        terminal.log(f"interrupted: the best plan so far is in {output}")
        return INTERRUPTED
    if plan.stopped_by is Stop.TIME_LIMIT:
        terminal.log(f"time limit reached: the best plan so far is in {output}")
        return TIME_LIMIT
    return 0


def infeasible_line(error: InfeasibleError, budget: int, method: str, scale: Scale) -> str:
    """What the smallest reachable budget is, which op sets it, and what to ask for."""
    if error.smallest_bytes is None:
        return f"infeasible: {error}"
    fact = "no schedule exists" if error.proven else f"{method} finds no schedule"
    where = f", set by op {error.limiting_op}" if error.limiting_op else ""
    other = "" if method in ("auto", "milp") else "--method auto or "
    return (
        f"infeasible: {fact} within the budget of {scale.memory(budget)}; the smallest budget "
        f"found is {scale.memory(error.smallest_bytes)}{where}: try {other}"
        f"--budget {error.smallest_bytes}{doubt(budget, scale.base_peak_bytes)}"
    )


def infeasible_document(
    error: InfeasibleError, budget: int, method: str, scale: Scale
) -> dict[str, object]:
    """The same for programs."""
    return {
        "method": method,
        "status": "infeasible",
        "proven": error.proven,
        **scale.document("budget", budget),
        **scale.document("smallest", error.smallest_bytes),
        "limiting_op": error.limiting_op,
        "reason": str(error),
    }
