"""Whether two strides, or two plain values, are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arrays import Numbers

if TYPE_CHECKING:
    import torch


def same_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> bool:
    """Equal strides in every dimension that has more than one element."""
    if tensor.numel() == 0:
        return True
    found = tensor.stride()
    return all(a == b for a, b, size in zip(found, stride, tensor.shape, strict=True) if size > 1)


def same_literal(value: Any, wanted: Any) -> bool:
    """Equal, of the same type, and so for NaN; of an array what it holds is `wanted`."""
    if value is wanted:
        return True
    if type(value) is not type(wanted):
        return isinstance(wanted, Numbers) and wanted.same(value)
    try:
        return bool(value == wanted) or bool(value != value and wanted != wanted)
    except (RuntimeError, TypeError, ValueError):
        return False
