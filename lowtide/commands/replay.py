"""`lowtide replay`: train a few steps under a plan and see whether it keeps its promises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..solver.units import format_bytes, format_more, format_seconds
from .options import Json, PlanFile, Quiet, StepSource, Times
from .progress import phases
from .source import load_step, on_device, split_source, warnings_as_lines
from .terminal import Terminal, complain, facts, stdout_to_stderr

if TYPE_CHECKING:
    from ..frontends.torch.captured import Captured
    from ..report.scale import Scale
    from ..solver.plan import Plan
    from .progress import Phases
    from .training import Measured

VERIFIED_STEPS = 2  # the second one runs on what the first one's update left


def replay(
    source: StepSource,
    plan: PlanFile,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Training steps to run.")] = 20,
    lr: Annotated[float, typer.Option(min=0.0, metavar="R", help="AdamW's learning rate.")] = 1e-3,
    device: Annotated[
        str | None,
        typer.Option(metavar="D", help="cpu or cuda; by default where the model is."),
    ] = None,
    times: Annotated[
        Times, typer.Option(help="Measure the memory of every op again, or trust the plan.")
    ] = Times.MEASURED,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare with the plain step bit by bit before training."),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Train with AdamW on the batch of your function, under a plan.

    Prints the losses, the measured peak beside the predicted one and the budget, and the time of
    forward and backward beside that of the plain step. With --verify, exit code 1 if loss,
    gradients, buffers or random state differ from those of the plain step.
    """
    from ..report.scale import Scale
    from ..solver.check import check_schedule
    from ..solver.files import read_plan

    terminal = Terminal(json, quiet)
    split_source(source)
    candidate = read_plan(plan)
    with (
        warnings_as_lines(terminal),
        phases(quiet=quiet) as now,
        stdout_to_stderr(),
    ):
        now.begin(f"replaying {source} for {steps} steps")
        step = on_device(load_step(source), device)
        from ..frontends.torch.capture import capture
        from ..runtime.replay import in_mode_of
        from ..runtime.replay import replay as run_replay
        from .training import loss_of, train

        captured = capture(step.model, step.batch, step.loss_fn, device=device)
        captured = in_mode_of(captured, candidate)
        check_schedule(captured.graph, candidate)
        if times is not Times.ROOFLINE:
            captured = with_measured(captured, candidate, terminal, now)
        captured = with_resident(captured, candidate)
        module = run_replay(captured, candidate)
        parity = None
        if verify:
            from ..runtime.parity.verify import verify as run_verify

            now.say("comparing with the plain step")
            batches = [step.batch] * VERIFIED_STEPS
            parity = run_verify(step.model, module, batches, loss_of=loss_of, measure=False)
        measured = train(captured, module, step.batch, steps=steps, lr=lr, say=now.say)
    scale = Scale.of(captured.graph)
    rows = measured_rows(candidate, scale, measured)
    document = measured_document(candidate, scale, measured)
    if measured.peak_bytes > candidate.budget_bytes:
        terminal.log(
            f"warning: the measured peak of {scale.memory(measured.peak_bytes)} is above the "
            f"budget of {scale.memory(candidate.budget_bytes)}"
        )
    if parity is not None:
        compared = ", ".join(f"{equal} of {count} {kind}" for kind, count, equal in parity.table())
        rows.append(("equal in every bit", compared))
        document["verified"] = parity.ok
        document["verification"] = parity.document()
        document["first_difference"] = parity.first_difference
    terminal.product(facts(rows), document)
    if parity is not None and not parity.ok:
        complain(f"the replayed step differs from the plain one: {parity.first_difference}")
        return 1
    return 0


def with_resident(captured: Captured, plan: Plan) -> Captured:
    """The step with the memory beside it, such as optimizer state, that the plan was made with."""
    extra = plan.resident_bytes - captured.graph.resident_bytes
    if extra <= 0:
        return captured
    extra += captured.graph.extra_resident_bytes
    graph = msgspec.structs.replace(captured.graph, extra_resident_bytes=extra)
    return replace(captured, program=replace(captured.program, graph=graph))


def with_measured(captured: Captured, plan: Plan, terminal: Terminal, now: Phases) -> Captured:
    """The step with measured costs, unless the plan, made without them, would not fit any more."""
    from ..frontends.torch.costs.profile import profile
    from ..solver.check import check_peak

    profiled = with_resident(profile(captured, progress=now.measured), plan)
    peak = check_peak(profiled.graph, plan.steps)
    if peak <= plan.budget_bytes:
        return profiled
    terminal.log(
        f"warning: with measured workspaces the plan needs {format_bytes(peak)} ({peak:,} B), more "
        f"than its budget of {format_bytes(plan.budget_bytes)} ({plan.budget_bytes:,} B): capture "
        "with --times measured and solve again"
    )
    return captured


def measured_rows(plan: Plan, scale: Scale, measured: Measured) -> list[tuple[str, str]]:
    """What was promised and what was measured, in words."""
    off = measured.peak_bytes - plan.peak_bytes
    deviation = "as predicted" if off == 0 else f"{off:+,} B from the prediction"
    plain_peak, plain = measured.plain_peak_bytes, measured.plain_seconds
    rows = [
        ("graph", plan.graph_name),
        ("budget", scale.memory(plan.budget_bytes)),
        ("predicted peak", scale.memory(plan.peak_bytes)),
        ("measured peak", f"{scale.memory(measured.peak_bytes)}, {deviation}"),
        ("plain step's peak", "does not fit" if plain_peak is None else scale.memory(plain_peak)),
        (
            "loss",
            f"{measured.losses[0]:.6g} first, {measured.losses[-1]:.6g} last "
            f"({len(measured.losses)} steps)",
        ),
    ]
    time = format_seconds(measured.seconds * 1e9)
    if plain is not None and plain > 0:
        extra = measured.seconds / plain - 1.0
        time += f", plain {format_seconds(plain * 1e9)} ({format_more(extra)}"
        time += f"; predicted {plan.expected})"
    rows.append(("time of one step", f"{time}; forward and backward, medians"))
    return rows


def measured_document(plan: Plan, scale: Scale, measured: Measured) -> dict[str, Any]:
    """The same for programs; losses that are not numbers are null."""
    plain = measured.plain_seconds
    return {
        "graph": plan.graph_name,
        "graph_hash": plan.graph_hash,
        **scale.document("budget", plan.budget_bytes),
        **scale.document("predicted_peak", plan.peak_bytes),
        **scale.document("measured_peak", measured.peak_bytes),
        **scale.document("plain_peak", measured.plain_peak_bytes),
        "steps": len(measured.losses),
        "losses": [loss if math.isfinite(loss) else None for loss in measured.losses],
        "seconds": measured.seconds,
        "plain_seconds": measured.plain_seconds,
        "predicted_overhead": plan.overhead,
        "predicted_overhead_over_plain": plan.overhead_over_plain,
        "measured_overhead": None if not plain else measured.seconds / plain - 1.0,
    }
