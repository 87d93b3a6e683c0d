"""Capture with times of whole steps: it replays steps, and so stands above capture and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..frontends.torch import capture as frontend
from .measure.calibrate import calibrate

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from ..frontends.torch.captured import Captured
    from ..frontends.torch.optimizer_state import OptimizerLike


def capture(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any] | None = None,
    *,
    times: Literal["roofline", "measured", "calibrated", "none"] = "roofline",
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
    model
        The module, in the mode (training or not) in which it will be used.
    batch
        A tuple of positional arguments, a dict of keyword arguments, or a single tensor.
    loss_fn
        `loss_fn(out)` or `loss_fn(out, batch)`. None: the module is captured as it is called, and
        what it returns is what a replayed module returns.
    times
        Where op times come from: a roofline model, measurements (`measured` runs ops, `calibrated`
        also runs whole steps on a copy of the model, see `Graph.calibration`), or nowhere (`none`
        leaves them at zero).
    device
        Where tensors on the `meta` device are to be.
    extra_resident_bytes
        Bytes that are always in memory beside the step's own tensors.
    optimizer
        The optimizer that the model is to be trained with: its state is added to the resident
        bytes, whether it exists by now or not. A class of `torch.optim` by its name in lower case
        (`adamw`, `adafactor`), or `sgd-momentum`; an optimizer, or a list of them; a class, or a
        `functools.partial` of one.
        The temporaries of its own step are not part of forward and backward, and not counted.
    accumulate
        True: the step of a later micro-batch. Gradients of an earlier one are in memory and count
        as resident; new ones are added to them, and let go, a stage of backward at a time. What
        fits so fits without gradients at the start as well. False: a step that begins without
        gradients, as after `zero_grad()`.
    trace_hooks
        True: forward hooks and tensor hooks are traced into the step instead of refused. They
        then run at capture only; what they do beside computing is lost.

    Raises
    ------
    CaptureError
        If the step cannot be captured exactly; the message names the reason and the line.
    """
    captured = frontend.capture(
        model,
        batch,
        loss_fn,
        times="measured" if times == "calibrated" else times,
        device=device,
        extra_resident_bytes=extra_resident_bytes,
        optimizer=optimizer,
        accumulate=accumulate,
        trace_hooks=trace_hooks,
    )
    return calibrate(captured, batch) if times == "calibrated" else captured
