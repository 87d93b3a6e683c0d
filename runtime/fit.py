"""The ten-second version: capture, solve and replay in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..frontends.torch.capture import capture
from ..solver.solve import solve
from .replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..solver.progress import Progress
    from .module import ReplayModule


def fit(
    model: nn.Module,
    batch: Any,
    memory_budget: str | int,
    loss_fn: Callable[..., Any] | None = None,
    *,
    times: Literal["measured", "roofline"] = "measured",
    method: str = "auto",
    time_limit: float = 60.0,
    threads: int = 1,
    seed: int = 0,
    extra_resident_bytes: int = 0,
    progress: Progress | None = None,
) -> ReplayModule:
    """A drop-in module whose training step fits the budget, with the same parameters.

    Parameters
    ----------
    model
        The module to train, on its device and in training mode.
    batch
        A tuple of positional arguments, a dict of keyword arguments, or a single tensor, of the
        shapes that training will use.
    memory_budget
        Device memory of forward and backward, resident bytes included: `6GiB`, bytes, or a
        percentage of what the step takes without recomputation beyond its resident bytes.
    loss_fn
        `loss_fn(out)` or `loss_fn(out, batch)`; the module then returns the loss. None: it returns
        what the model returns.
    times
        Measure every op on the device, or estimate.
    method, time_limit, threads, seed, progress
        As `solve` takes them.
    extra_resident_bytes
        Bytes always in memory beside the step's own tensors: optimizer state.

    Raises
    ------
    CaptureError
        If the step cannot be captured.
    InfeasibleError
        If no schedule meets the budget; it has the smallest one that can be met.
    NoPlanError
        If time passed before a schedule was found.
    """
    captured = capture(
        model, batch, loss_fn, times=times, extra_resident_bytes=extra_resident_bytes
    )
    plan = solve(
        captured.graph,
        memory_budget,
        method=method,
        time_limit=time_limit,
        threads=threads,
        seed=seed,
        progress=progress,
    )
    return replay(captured, plan)
