"""Refuses what differentiates or batches a call in ways that a captured step has no code for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad as _forward_ad

from ...solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence

forward_ad: Any = _forward_ad
_level: Any = getattr(torch._C._functorch, "maybe_current_level", lambda: None)
_included: Any = torch._C._dispatch_tls_is_dispatch_key_included
_BATCHING: Any = torch._C._parse_dispatch_key("VmapMode")  # of is_grads_batched
_PLAIN = "call the original model (captured.model) for it"


def in_transform() -> bool:
    """True inside `torch.func` transforms: grad, vjp, jvp, vmap and what is made of them."""
    return _level() is not None


def in_batches() -> bool:
    """True inside such a transform, or where PyTorch batches the gradients of a backward."""
    return _level() is not None or _included(_BATCHING)


def transform_error() -> ReplayError:
    """The error of a call inside one."""
    return ReplayError(
        "a replayed step cannot run inside a torch.func transform (grad, vjp, jvp, vmap, "
        f"functionalize): its backward is fixed code; {_PLAIN}, or use .backward() or "
        "torch.autograd.grad"
    )


def batched_error() -> ReplayError:
    """The error of a backward inside one, which `is_grads_batched` is."""
    return ReplayError(
        "a replayed step cannot take several gradients of its outputs at once (is_grads_batched, "
        "vectorize=True, torch.func.vmap around torch.autograd.grad): its backward is fixed code; "
        f"call torch.autograd.grad for one after the other, or {_PLAIN}"
    )


def refuse_duals(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Raise for a tensor that carries a forward-mode tangent.

    Raises
    ------
    ReplayError
        If one does; it would be dropped silently.
    """
    if getattr(forward_ad, "_current_level", 0) < 0:
        return
    for tensor, name in zip(tensors, names, strict=True):
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise ReplayError(
                f"{name} is a dual tensor of forward-mode AD, and a replayed step has no "
                f"forward-mode derivative: {_PLAIN}"
            )
