"""Whether two strides, or two plain values, are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arrays import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def same_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> bool:
    """Equal strides in every dimension that has more than one element."""
    if tensor.numel() == 0:
        return True
    found = tensor.stride()
    return all(a == b for a, b, size in zip(found, stride, tensor.shape, strict=True) if size > 1)


def same_literal(value: Any, wanted: Any) -> bool:
    """Equal, of the same type, and so for NaN; of an array what it holds is `wanted`.

    What tuples, slices and sets hold has to be so, too: `(1,) == (True,)` is true in Python.
    """
    if value is wanted:
        return True
    if type(value) is not type(wanted):
        return isinstance(wanted, Numbers) and wanted.same(value)
    try:
        if isinstance(wanted, (tuple, slice, set, frozenset)):
            return _same_parts(value, wanted)
        return bool(value == wanted) or bool(value != value and wanted != wanted)
    except (RuntimeError, TypeError, ValueError):
        return False


def typed(items: Iterable[Any]) -> set[tuple[type, Any]]:
    """The members of a set with their types: sets of them differ where only types do."""
    return {*zip(map(type, items), items, strict=True)}


def _same_parts(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, (set, frozenset)):
        return typed(value) == typed(wanted)
    if isinstance(wanted, slice):
        value, wanted = ((s.start, s.stop, s.step) for s in (value, wanted))
    return len(value) == len(wanted) and all(map(same_literal, value, wanted))
