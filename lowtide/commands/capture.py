"""`lowtide capture`: the graph of a training step, with what every op costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..solver.units import parse_amount
from .options import Json, Quiet, StepSource, Times
from .progress import phases
from .target import writable
from .terminal import Terminal, facts, stdout_to_stderr


def capture(
    source: StepSource,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The graph to write.")
    ],
    device: Annotated[
        str | None,
        typer.Option(metavar="D", help="cpu or cuda; by default where the model is."),
    ] = None,
    times: Annotated[
        Times,
        typer.Option(
            help="Run every op on the device (measured), whole steps too (calibrated), or estimate."
        ),
    ] = Times.CALIBRATED,
    extra_resident: Annotated[
        str,
        typer.Option(
            metavar="B",
            help="Memory always taken beside the step, such as 2GiB of another model.",
        ),
    ] = "0",
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Count its state: sgd-momentum, or a name of torch.optim such as adamw.",
        ),
    ] = None,
    accumulate: Annotated[
        bool,
        typer.Option(
            "--accumulate",
            help="Plan for steps that add to gradients of earlier batches, which count as well.",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Record the training step that a function of yours makes.

    The function takes nothing and returns (model, batch) or (model, batch, loss_fn); batch is a
    tuple of arguments, a dict of keyword arguments or one tensor.
    """
    from ..report.scale import Scale
    from ..solver.files import write_graph
    from .source import load_step, notes_as_lines, on_device, split_source, warnings_as_lines

    terminal = Terminal(json, quiet)
    split_source(source)
    extra = 0 if extra_resident.strip() == "0" else parse_amount(extra_resident, "--extra-resident")
    writable(output)
    with (
        warnings_as_lines(terminal),
        notes_as_lines(terminal),
        phases(quiet=quiet) as now,
        stdout_to_stderr(),
    ):
        now.begin(f"capturing {source}")
        step = on_device(load_step(source), device)
        from ..frontends.torch.capture import capture as run_capture
        from ..frontends.torch.capture import with_times

        captured = run_capture(
            step.model,
            step.batch,
            step.loss_fn,
            times="none",
            device=device,
            extra_resident_bytes=extra,
            optimizer=optimizer,
            accumulate=accumulate,
        )
        if times is Times.ROOFLINE:
            captured = with_times(captured, "roofline")
        else:
            now.begin("measuring operators")
            captured = with_times(captured, "measured", now.measured)
        if times is Times.CALIBRATED:
            from ..runtime.measure.calibrate import calibrate

            now.begin("timing whole steps under a few plans")
            captured = calibrate(captured, step.batch)
    graph = captured.graph
    # Steps cannot be run everywhere; then there is no calibration.
    origin = Times.MEASURED if times is Times.CALIBRATED and not graph.calibration else times
    plain_ns = graph.calibration.plain_ns if graph.calibration else -1
    write_graph(graph, output)
    scale = Scale.of(graph)
    state, held = int(graph.meta.get("optimizer_bytes", 0)), graph.existing_gradient_bytes
    forward = sum(op.phase == "forward" for op in graph.ops)
    rows = [
        ("graph", graph.name),
        ("ops", f"{len(graph.ops):,} ({forward:,} forward)"),
        ("tensors", f"{len(graph.tensors):,}"),
        ("peak without recomputation", scale.memory(scale.base_peak_bytes)),
        ("resident", scale.memory(scale.resident_bytes)),
        *([("optimizer state", scale.size(state))] if optimizer else []),
        *([("existing gradients", scale.size(held))] if accumulate else []),
        ("step time", f"{scale.time(scale.base_time_ns)} ({origin.value})"),
        *([("step time of plain PyTorch", scale.time(plain_ns))] if plain_ns >= 0 else []),
        ("hash", graph.structure_hash[:12]),
        ("written to", str(output)),
    ]
    document = {
        "graph": graph.name,
        "graph_hash": graph.structure_hash,
        "ops": len(graph.ops),
        "forward_ops": forward,
        "tensors": len(graph.tensors),
        **scale.document("base_peak", scale.base_peak_bytes),
        **scale.document("resident", scale.resident_bytes),
        **scale.document("optimizer", state),
        **scale.document("existing_gradient", held),
        "base_time_ns": scale.base_time_ns,
        "plain_step_ns": None if plain_ns < 0 else plain_ns,
        "times": origin.value,
        "meta": graph.meta,
        "file": str(output),
    }
    terminal.product(facts(rows), document)
    return 0
