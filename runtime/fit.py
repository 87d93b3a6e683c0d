"""The short way: capture, solve and replay in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..frontends.torch.capture import capture
from ..solver.solve import solve
from .replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from .module import ReplayModule


def fit(
    model: nn.Module,
    batch: Any,
    *,
    memory_budget: str | int,
    loss_fn: Callable[..., Any] | None = None,
    extra_resident_bytes: int = 0,
    times: Literal["roofline", "measured"] = "measured",
    time_limit: float = 60.0,
    seed: int = 0,
) -> ReplayModule:
    """A drop-in module whose training step stays under a memory budget.

    Parameters
    ----------
    model
        The module, in the mode in which it will be trained. It is wrapped, not copied.
    batch
        A tuple of positional arguments, a dict of keyword arguments, or a single tensor.
    memory_budget
        Device memory of the step, parameters and gradients included: `6GiB`, bytes, or a
        percentage: resident bytes + 60% of what the rest takes without recomputation.
    loss_fn
        `loss_fn(out)` or `loss_fn(out, batch)`; the module then returns the loss.
    extra_resident_bytes
        Bytes always in memory beside the step's own tensors: optimizer state.
    times
        Measure the time of every op, or estimate it.
    time_limit
        Seconds for the solver.
    seed
        The solver's seed.

    Raises
    ------
    CaptureError
        If the step cannot be captured exactly.
    InfeasibleError
        If no schedule within the budget was found; it says which budget can be met.
    """
    captured = capture(
        model, batch, loss_fn, times=times, extra_resident_bytes=extra_resident_bytes
    )
    plan = solve(captured.graph, memory_budget, time_limit=time_limit, seed=seed)
    return replay(captured, plan)
