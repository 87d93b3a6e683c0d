"""What a call of a replayed step returns: tensors with a history, structured as the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from .autograd import attach, refuse

if TYPE_CHECKING:
    import torch

    from ..guards.shared_casts import CastContext
    from ..wiring import Wiring


def returned(wiring: Wiring, inputs: list[torch.Tensor], values: list[torch.Tensor]) -> Any:
    """What a call returns, from the values that the code made."""
    code = wiring.code
    leaves = list(wiring.plain_leaves)
    aliases = code.alias_outputs(inputs) if code.alias_outputs is not None else ()
    for leaf, (kind, place) in enumerate(code.leaves):
        if kind == "value":
            leaves[leaf] = values[place]
        elif kind == "alias":
            leaves[leaf] = aliases[place]
    spec = wiring.program.out_spec
    return leaves[0] if spec.is_leaf() else pytree.tree_unflatten(leaves, spec)


def give_history(
    wiring: Wiring,
    inputs: list[torch.Tensor],
    values: list[torch.Tensor],
    saved: list[torch.Tensor],
    casts: CastContext | None,
) -> None:
    """Give outputs their autograd history, in place in `values`."""
    leaves = [[inputs[i] for i in stage] for stage in wiring.leaves]
    run = wiring.run(inputs, values, saved, leaves[0])
    run.casts, run.units = casts, wiring.units
    summed = wiring.summed_of(inputs)
    made = attach(run, [values[i] for i in wiring.differentiable], leaves, summed)
    for place, tensor in zip(wiring.differentiable, made, strict=True):
        values[place] = tensor
    if wiring.refused:
        behind = [inputs[i] for i in wiring.refused_reach]
        blocked = refuse([values[i] for i in wiring.refused], behind)
        for place, tensor in zip(wiring.refused, blocked, strict=True):
            values[place] = tensor
