"""What a step is called with: the batch as the user gives it, and what an argument must be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...solver.errors import InputError, a_type
from . import export
from .interface import LiteralGuard, TensorGuard
from .outside.arrays import Numbers
from .sources import repeated

if TYPE_CHECKING:
    from .captured import BatchStyle


def split_batch(batch: Any) -> tuple[BatchStyle, tuple[Any, ...], dict[str, Any]]:
    """Arguments and keywords of the model for a batch."""
    if isinstance(batch, torch.Tensor):
        return "tensor", (batch,), {}
    if isinstance(batch, Mapping):
        return "dict", (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return "tuple", tuple(batch), {}
    raise InputError(
        f"the batch is {a_type(type(batch))}: give a tuple of arguments, a dict of keywords, "
        "or one tensor"
    )


def loss_takes_batch(loss_fn: Callable[..., Any]) -> bool:
    """Whether a loss wants `(out, batch)`: by the number of its required positional parameters."""
    if not callable(loss_fn):
        raise InputError(f"the loss is {a_type(type(loss_fn))}, which cannot be called")
    target = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 2:
        raise InputError(
            f"the loss takes {len(required)} arguments: write it as loss_fn(out) or "
            "loss_fn(out, batch)"
        )
    return len(required) == 2


def guards_of(
    flat: list[Any], device: torch.device | None
) -> tuple[TensorGuard | LiteralGuard, ...]:
    """What the arguments must be, one by one and as seen together."""
    found = [guard(leaf, device) for leaf in flat]
    for position, first in repeated(flat).items():
        one = found[position]
        assert isinstance(one, TensorGuard)
        found[position] = replace(one, same_as=first)
    return tuple(found)


def guard(leaf: Any, device: torch.device | None) -> TensorGuard | LiteralGuard:
    """What an argument must be for the program to hold."""
    if not isinstance(leaf, torch.Tensor):
        return LiteralGuard(Numbers.of(leaf) or leaf)
    where = device if leaf.device.type == "meta" and device is not None else leaf.device
    return TensorGuard(
        tuple(leaf.shape), leaf.dtype, where, tuple(leaf.stride()), leaf.requires_grad
    )


def example(leaf: Any) -> Any:
    """A leaf as the profiler needs it, without keeping the user's batch alive."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    data = export.is_plain(leaf) and leaf.device.type != "meta"
    if data and not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf.detach().to("cpu", copy=True)
    return torch.empty_strided(
        tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device="meta"
    ).requires_grad_(leaf.requires_grad)
