"""A few steps of training under a plan, measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..frontends.torch.batches import split_batch
from ..frontends.torch.costs.meter import measure_peak, measure_step_time, medians
from ..frontends.torch.deliveries import is_accumulating
from ..solver.errors import InputError, LowtideError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..frontends.torch.captured import Captured

TIMED_ROUNDS = 5


@dataclass(frozen=True)
class Measured:
    """What happened in training.

    Attributes
    ----------
    losses
        Loss of every step, before its update.
    peak_bytes, plain_peak_bytes
        Measured peak of forward and backward, resident bytes included, and that of the plain step;
        None if the plain step ran out of memory.
    seconds, plain_seconds
        Median time of forward and backward, and that of the plain step.
    """

    losses: tuple[float, ...]
    peak_bytes: int
    plain_peak_bytes: int | None
    seconds: float
    plain_seconds: float | None


def train(
    captured: Captured,
    module: nn.Module,
    batch: Any,
    *,
    steps: int,
    lr: float,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Train with AdamW on one batch, then measure a replayed and a plain step in turns.

    `say` hears how far it is.

    Raises
    ------
    InputError
        If there is nothing to train, or the step returns no loss.
    LowtideError
        If the device has too little memory.
    """
    _, args, kwargs = split_batch(batch)
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("the model has no parameter that requires a gradient: nothing to train")
    optimizer = torch.optim.AdamW(parameters, lr=lr)
    losses: list[float] = []

    def replayed() -> float:
        return _forward_backward(lambda: module(*args, **kwargs))

    def plain() -> float:
        return _forward_backward(lambda: captured.call(args, kwargs))

    adding = is_accumulating(captured.graph)

    def clear() -> None:
        optimizer.zero_grad(set_to_none=True)

    # The second step is measured: libraries take their own memory in the first.
    at = min(1, steps - 1)
    peak = 0
    for step in range(steps):
        say(f"training step {step + 1} of {steps}")
        try:
            clear()
            if step == at:
                if adding:
                    replayed()  # its gradients are what the measured step adds to
                reading = measure_peak(replayed, captured.device)
                peak = reading.peak_bytes
                losses.append(reading.result)
            else:
                losses.append(replayed())
            optimizer.step()
        except torch.OutOfMemoryError:
            raise LowtideError(
                f"out of memory in training step {step}: beside the plan's peak the device holds "
                "the optimizer's state and what other processes take; solve for a smaller budget"
            ) from None
    say("measuring a plain step and a replayed one")
    del optimizer.state  # a plain step needs the room
    resident = captured.graph.resident_bytes
    plain_peak = _plain_peak(plain, parameters, captured.device, adding=adding)
    calls: dict[str, Callable[[], Any]] = {"replayed": _cleared(replayed, parameters)}
    if plain_peak is not None:
        calls["plain"] = _cleared(plain, parameters)
    rounds = min(TIMED_ROUNDS, steps)
    times = medians(measure_step_time(calls, rounds, settle=True, device=captured.device))
    return Measured(
        tuple(losses),
        resident + peak,
        None if plain_peak is None else resident + plain_peak,
        times["replayed"],
        times.get("plain"),
    )


def loss_of(output: Any) -> torch.Tensor:
    """The scalar to call backward on: the output itself, its `loss`, or its first element."""
    loss = output
    if isinstance(output, dict) or hasattr(output, "loss"):
        loss = output["loss"] if isinstance(output, dict) and "loss" in output else None
        loss = getattr(output, "loss", loss)
    elif isinstance(output, (tuple, list)) and output:
        loss = output[0]
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        raise InputError(
            "the step returns no loss: return a loss_fn beside model and batch, or have the model "
            "return its loss"
        )
    return loss if loss.numel() == 1 else loss.float().mean()


def _forward_backward(forward: Callable[[], Any]) -> float:
    output = forward()  # held until the end, as training loops hold it: logits count
    loss = loss_of(output)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def _cleared(step: Callable[[], Any], parameters: list[nn.Parameter]) -> Callable[[], Any]:
    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        step()

    return run


def _plain_peak(
    plain: Callable[[], Any],
    parameters: list[nn.Parameter],
    device: torch.device,
    *,
    adding: bool,
) -> int | None:
    """Peak of the plain step; None if it does not fit, which is what plans are for."""
    for parameter in parameters:
        parameter.grad = None
    try:
        if adding:
            plain()
        return measure_peak(plain, device).peak_bytes
    except torch.OutOfMemoryError:
        for parameter in parameters:
            parameter.grad = None
        torch.cuda.empty_cache()
        return None
