"""`lowtide smallest`: the smallest budget of a step, and how much smaller it could be at best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Backend, GraphFile, Json, Order, Quiet, Seed, TimeLimit
from .progress import Phases, phases
from .solve import INTERRUPTED
from .target import writable
from .terminal import Terminal, facts, stdout_to_stderr

if TYPE_CHECKING:
    from ..report.scale import Scale
    from ..solver.progress import Event


def smallest(
    graph: GraphFile,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the plan that reaches it."),
    ] = None,
    time_limit: TimeLimit = 60.0,
    gap: Annotated[
        float, typer.Option(min=0.0, metavar="G", help="Stop once (found - bound) / found is this.")
    ] = 0.01,
    seed: Seed = 0,
    backend: Backend = "highs",
    order: Order = "any",
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the smallest memory budget for which a schedule exists.

    Says what was reached, and below what nothing exists: an answer with exit code 0, whatever gap
    between the two is left when time is up. The plan that reaches it is rarely one to train with: a
    little more memory often saves much time; see lowtide sweep.
    """
    from ..report.scale import Scale
    from ..solver.assemble import Origin, assemble
    from ..solver.bracket import bracket
    from ..solver.compiled import compile_parts
    from ..solver.files import read_graph, write_plan
    from ..solver.milp.backends import backend as backend_named
    from ..solver.plan import Stop

    terminal = Terminal(json, quiet)
    if output is not None:
        writable(output, inputs=[graph])
    backend_named(backend)
    step = read_graph(graph)
    scale = Scale.of(step)
    label = f"looking for the smallest budget of {step.name} ({len(step.ops):,} ops)"
    with phases(quiet=quiet) as now, stdout_to_stderr():
        compile_parts(now.begin, blocks=False)
        now.begin(label)
        found = bracket(
            step,
            time_limit=time_limit,
            gap=gap,
            seed=seed,
            backend=backend,
            order=order,
            progress=_Bounds(now, scale),
        )
    origin = Origin("smallest", seed, 1, found.seconds)
    plan = assemble(step, found.found_bytes, found.computes, origin)
    if output is not None:
        write_plan(plan, output)
    rows = [
        ("graph", step.name),
        ("smallest budget", scale.memory(found.found_bytes)),
        ("nothing below", f"{scale.memory(found.bound_bytes)} in base order"),
        ("", f"{scale.memory(found.any_order_bound_bytes)} in any order"),
        ("gap", f"{found.gap:.3%}"),
        ("overhead there", f"{plan.overhead:.3%}"),
        ("found in", f"{found.seconds:.1f} s"),
    ]
    document = {
        **scale.document("smallest", found.found_bytes),
        **scale.document("bound", found.bound_bytes),
        **scale.document("any_order_bound", found.any_order_bound_bytes),
        "bound_class": found.bound_class,
        "gap": found.gap,
        "overhead": plan.overhead,
        "seconds": found.seconds,
        "stopped_by": found.stopped_by.value,
        "plan": None if output is None else str(output),
    }
    terminal.product(facts(rows), document)
    if found.stopped_by is Stop.INTERRUPTED:
        terminal.log("interrupted: a smaller budget may be possible")
        return INTERRUPTED
    if found.stopped_by is Stop.TIME_LIMIT:
        # The two bounds are the answer, however far apart: code 4 is for plans that may get better.
        terminal.log(
            f"a gap of {found.gap:.3%} remains: a smaller budget may be possible; "
            "a longer --time-limit may narrow it"
        )
    return 0


class _Bounds:
    """Tells of the two bounds between which the smallest budget lies; events come in bytes."""

    def __init__(self, now: Phases, scale: Scale) -> None:
        self._now, self._scale = now, scale

    def update(self, event: Event) -> None:
        """What was reached, and below what nothing exists."""
        if event.incumbent_ns is not None and event.bound_ns is not None:
            reached, bound = (self._scale.memory(it) for it in (event.incumbent_ns, event.bound_ns))
            self._now.say(f"found {reached}; nothing below {bound} in base order")
