"""Peak and time of a plain step and a replayed one, with the batch that takes the most memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ...frontends.torch.costs.meter import measure_peak, measure_step_time, medians
from ...frontends.torch.outside.alike import same_strides
from ..step.passed_on import clone_as_it_is
from .verification import Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .verify import Trainee


def measure_largest(
    plain: Trainee,
    replayed: Trainee,
    batches: Sequence[Any],
    pick: Callable[[Any], torch.Tensor],
    repeats: int,
    kept: bool,
) -> Measured:
    """Measure one step of both, with the batch whose plain peak is the largest.

    Batches of one kind are taken to have one peak. Of several with the largest, the first is taken.

    Parameters
    ----------
    pick
        Takes the loss from what a step returns.
    repeats
        Timed steps of each.
    kept
        Gradients of the step before stay, and are added to.
    """
    kinds = one_of_each_kind(batches)
    peaks = {step: _peak(plain, copy_batch(batches[step]), pick, kept) for step in kinds}
    largest = max(kinds, key=lambda step: peaks[step])
    own = copy_batch(batches[largest])
    peak = _peak(replayed, own, pick, kept)

    def timed(trainee: Trainee) -> Callable[[], Any]:
        def run() -> Any:
            if not kept:
                trainee.clear()
            return trainee.step(own, pick)[0]

        return run

    fns = {"plain": timed(plain), "replayed": timed(replayed)}
    middle = medians(measure_step_time(fns, repeats, settle=True, device=plain.device))
    return Measured(
        step=largest,
        steps=len(batches),
        kinds=len(kinds),
        plain_peak_bytes=peaks[largest],
        replay_peak_bytes=peak,
        plain_seconds=middle["plain"],
        replay_seconds=middle["replayed"],
    )


def one_of_each_kind(batches: Sequence[Any]) -> list[int]:
    """Index of the first batch of each kind: structure, shapes and types, values of the rest."""
    first: dict[Any, int] = {}
    for index, batch in enumerate(batches):
        leaves, spec = pytree.tree_flatten(batch)
        first.setdefault((str(spec), *map(_kind, leaves)), index)
    return list(first.values())


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.layout, leaf.requires_grad
    return type(leaf), repr(leaf)


def copy_batch(batch: Any) -> Any:
    """A batch with tensors of its own, leaves that require gradients where the given ones do.

    What is one tensor in several places is one in the copy.
    """
    copies: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            twin = _twin(tensor.detach())
            copies[id(tensor)] = twin.requires_grad_(tensor.requires_grad)
        return copies[id(tensor)]

    return pytree.tree_map_only(torch.Tensor, copied, batch)


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, also where memory has gaps or elements share theirs."""
    twin = tensor.clone()
    if tensor.layout is not torch.strided or same_strides(tensor, twin.stride()):
        return twin
    return clone_as_it_is(tensor)


def _peak(trainee: Trainee, batch: Any, pick: Callable[[Any], torch.Tensor], kept: bool) -> int:
    """Peak of a step in bytes, after one that warms up and leaves its gradients if `kept`."""

    def step() -> Any:
        return trainee.step(batch, pick)[0]

    trainee.clear()
    step()
    if not kept:
        trainee.clear()
    _clear_inputs(batch)
    peak = measure_peak(step, trainee.device).peak_bytes
    trainee.clear()
    _clear_inputs(batch)
    return peak


def _clear_inputs(batch: Any) -> None:
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.is_leaf:
            leaf.grad = None
