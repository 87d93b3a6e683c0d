"""Capture a training step: run it once on fake tensors, trace it, lower it to a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...solver.errors import CaptureError, InputError, a_type
from . import export
from .batches import example, guards_of, loss_takes_batch, split_batch
from .captured import BatchStyle, Captured
from .counters import refuse_counted
from .dry_run import dry_run
from .lower import lower
from .outside.behaviour import behaviours_of
from .outside.changes import changed_numbers, nothing_left, numbers_of
from .outside.modules import modules_of
from .refills import refuse_changing, same_refill
from .refuse import refuse_modules, untouched
from .sources import home_device, input_sources, module_sources
from .step import Root, Step
from .watch import error_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .costs.sampler import Progress
    from .optimizer_state import OptimizerLike
    from .outside.behaviour import Behaviour
    from .program import Program


class Traced(NamedTuple):
    """A step, its fake mode, the device it runs on, and its joint graph."""

    step: Step
    mode: Any
    device: torch.device
    joint: export.Joint


def capture(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any] | None = None,
    *,
    times: Literal["roofline", "measured", "none"] = "roofline",
    device: str | torch.device | None = None,
    extra_resident_bytes: int = 0,
    optimizer: OptimizerLike | None = None,
    accumulate: bool = False,
    trace_hooks: bool = False,
) -> Captured:
    """Capture forward, loss and backward of one training step.

    Nothing is computed and no activation is allocated: the model and the batch may be on any
    device, fake, or on the `meta` device. The model, its buffers and the random state of the
    process stay as they are.

    Parameters
    ----------
    model, batch, loss_fn, device, extra_resident_bytes, optimizer, accumulate, trace_hooks
        As `lowtide.capture` takes them.
    times
        Where op times come from: a roofline model, measurements (which run the ops), or nowhere
        (`none` leaves them at zero).

    Raises
    ------
    CaptureError
        If the step cannot be captured exactly; the message names the reason and the line.
    """
    return capture_call(
        model,
        *split_batch(batch),
        loss_fn,
        times=times,
        device=device,
        extra_resident_bytes=extra_resident_bytes,
        optimizer=optimizer,
        accumulate=accumulate,
        trace_hooks=trace_hooks,
    )


def capture_call(
    model: nn.Module,
    style: BatchStyle,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: Callable[..., Any] | None = None,
    *,
    times: Literal["roofline", "measured", "none"] = "roofline",
    device: str | torch.device | None = None,
    extra_resident_bytes: int = 0,
    optimizer: OptimizerLike | None = None,
    accumulate: bool = False,
    trace_hooks: bool = False,
) -> Captured:
    """`capture` for the call `model(*args, **kwargs)`; `style` says what a loss gets as batch."""
    export.check_version()
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is {a_type(type(model))}, not a torch.nn.Module")
    if times not in ("roofline", "measured", "none"):
        raise InputError(f"times={times!r}: choose roofline, measured, calibrated or none")
    if torch.is_inference_mode_enabled():
        raise CaptureError("nothing can be trained in inference mode: capture outside of it")
    takes_batch = loss_fn is not None and loss_takes_batch(loss_fn)
    where = None if device is None else torch.device(device)
    refuse_modules(model, loss_fn, trace_hooks)

    def loss_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return kwargs if style == "dict" else args[0] if style == "tensor" else args

    root = Root(model, loss_fn, loss_batch if takes_batch else None)
    flat, in_spec = pytree.tree_flatten((args, kwargs))

    def attempt(compiled: bool) -> Traced:
        mode = export.new_fake_mode()
        sources = [*module_sources(mode, root, where), *input_sources(mode, flat, in_spec, where)]
        step = Step(root, sources, flat, in_spec, trace_hooks=trace_hooks)
        return trace(step, mode, compiled=compiled)

    try:
        traced = attempt(compiled=False)
    except CaptureError as error:
        # Asked for values, or worse; libraries that know they are compiled do without.
        if error.__cause__ is None:
            raise
        traced = attempt(compiled=True)
    step, mode, home, joint = traced
    program = lower(
        joint,
        step,
        mode,
        device=home,
        name=type(model).__name__,
        guards=guards_of(flat, where),
        extra_resident_bytes=extra_resident_bytes,
    )
    behaviours = behaviours_of(program, model, loss_fn)
    refuse_hidden(step, program, behaviours)
    captured = Captured(
        program=program,
        model=model,
        loss_fn=loss_fn,
        loss_takes_batch=takes_batch,
        batch_style=style,
        example=tuple(example(leaf) for leaf in flat),
        device=home,
        behaviours=behaviours,
    )
    if optimizer is not None:
        captured = captured.with_optimizer(optimizer)
    return with_times(captured.accumulating() if accumulate else captured, times)


def trace(step: Step, mode: Any, *, compiled: bool) -> Traced:
    """Run the step on fake tensors, then trace it; user code sees whether it is `compiled`."""
    root: Root = step.__dict__["root"]
    home = home_device(step.sources)
    modules = modules_of(root.model, root.loss_fn)
    with (
        untouched(root),
        nothing_left(modules, root.loss_fn) as left,
        export.tracing(compiled=compiled, state=step.lasting),
    ):
        recorder = dry_run(step, mode)
        left.refuse(step.reads)
        before = numbers_of(modules, root.loss_fn, step.reads)
        try:
            with recorder.recording_backwards():
                joint = export.export_joint(step, [source.fake for source in step.sources])
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(failure(error, step.names)) from error
        recorder.refuse_setting()
        if not all(same_refill(step.refills[0], refill) for refill in step.refills):
            raise refuse_changing()
        left.refuse(step.reads)  # what runs in backward left
        after = numbers_of(modules, root.loss_fn, step.reads)
        counters = changed_numbers(before, after)
        if counters:
            refuse_counted(step, mode, joint, counters)
        step.reads = step.reads.without(counters)
    return Traced(step, mode, home, joint)


def refuse_hidden(step: Step, program: Program, behaviours: Sequence[Behaviour]) -> None:
    """Refuse tensors from outside that cannot be found again: another one would go unseen.

    Raises
    ------
    CaptureError
        If the step reads one that is neither in a module nor in a closure, global or container
        that can be reached from one.
    """
    found = {value for then in behaviours for value in then.tensors.values()}
    found |= {place.value for then in behaviours for place in then.outside}
    met = {id(source.real) for source in step.sources if source.kind == "constant"}
    for spec in program.inputs:
        if spec.kind == "constant" and id(spec.tensor) in met and spec.value not in found:
            assert spec.tensor is not None
            raise CaptureError(
                f"the step reads a tensor of shape {list(spec.tensor.shape)} that is kept where it "
                "cannot be found again, so that a replay would not notice another in its place; "
                "make it a buffer or an attribute of the model, or pass it in the batch"
            )


def with_times(captured: Captured, times: str, progress: Progress | None = None) -> Captured:
    """The step with modelled or measured costs; `progress` as for `profile`."""
    if times == "none":
        return captured
    if times == "measured":
        from .costs.profile import profile

        return profile(captured, progress=progress)
    from .costs.roofline import roofline_times

    return captured.with_costs(
        time_ns=roofline_times(captured, machine=None), meta={"times": "roofline"}
    )


def failure(error: BaseException, names: Mapping[int, str]) -> str:
    """One line about an exception that the user's code, or PyTorch for it, raised."""
    lines = str(error).strip().splitlines() or [""]
    where = error_origin(error, names)
    start = f"{where}: " if where else ""
    return f"{start}the step cannot be traced ({type(error).__name__}: {lines[0]})"
