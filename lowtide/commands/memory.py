"""`lowtide memory`: where a plan's tensors lie in one buffer, and how much of it is wasted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from .options import GraphFile, Json, PlanFile, Quiet, Seed, Threads, TimeLimit
from .progress import phases
from .solve import INTERRUPTED
from .target import writable
from .terminal import Terminal, facts


def memory(
    graph: GraphFile,
    plan: PlanFile,
    exact: Annotated[
        bool, typer.Option("--exact", help="Prove that no shorter buffer will do, or find one.")
    ] = False,
    time_limit: TimeLimit = 20.0,
    alignment: Annotated[
        int | None,
        typer.Option(min=1, metavar="BYTES", help="Of offsets.", show_default="64; 512 on CUDA"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the addresses, as JSON."),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Give every tensor of a plan a fixed address in one buffer.

    Shows the buffer's length against the peak of live bytes, which no buffer can go below, and
    against what PyTorch's caching allocator would reserve on CUDA for the same plan, on paper.
    Resident tensors are left out of all figures.
    """
    from ..report.scale import Scale
    from ..solver.files import read_graph, read_plan, write_atomic
    from ..solver.memory.addresses import addresses
    from ..solver.memory.caching import reserved_bytes
    from ..solver.units import format_percent

    if output is not None:
        writable(output, inputs=[graph, plan], suffixes=(".json",))
    step, made = read_graph(graph), read_plan(plan)
    interrupt = threading.Event()
    with phases(quiet=quiet) as now:
        now.say("looking for the shortest buffer")
        found = addresses(
            step,
            made,
            exact,
            alignment=alignment,
            time_limit=time_limit,
            seed=seed,
            threads=threads or 1,
            interrupt=interrupt,
        )
    scale = Scale.of(step)
    reserved = reserved_bytes(found.blocks)
    document = {
        **{key: value for key, value in found.document().items() if key != "blocks"},
        "blocks": len(found.blocks),
        "resident_bytes": step.resident_bytes,
        "caching_allocator_bytes": reserved,
    }
    rows = [
        ("peak of live bytes", scale.size(found.live_bytes)),
        ("lower bound", f"{scale.size(found.lower_bound_bytes)} in steps of {found.alignment} B"),
        ("buffer", f"{scale.size(found.arena_bytes)}, {found.rule}, {_words(found.proven)}"),
        ("unused at the peak", format_percent(found.fragmentation)),
        ("caching allocator", f"{scale.size(reserved)} on CUDA, on paper"),
        ("blocks", f"{len(found.blocks):,}"),
    ]
    if output is not None:
        data = msgspec.json.format(msgspec.json.encode(found.document()), indent=1)
        write_atomic(output, data + b"\n")
    terminal = Terminal(json, quiet)
    terminal.product(facts(rows), document)
    if output is not None:
        terminal.log(f"addresses written to {output}")
    return INTERRUPTED if interrupt.is_set() else 0


def _words(proven: bool) -> str:
    return "proven to be shortest" if proven else "not proven to be shortest"
