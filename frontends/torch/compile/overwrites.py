"""Which root may be written over a tensor that it reads last.

Inductor gives the result of an elementwise kernel the memory of an input that dies there, if both
are alike and every element is read where it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .inline import nbytes
from .roles import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import fx

    from .inline import Expressions

_COPIES = {"aten.clone", "aten._to_copy", "prims.convert_element_type"}


def overwritten(
    found: Expressions, order: Sequence[fx.Node], kept: Iterable[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Per elementwise root that has one: the root that it may be written over.

    Parameters
    ----------
    found
        What is in memory.
    order
        Roots in the order in which they run when nothing is recomputed.
    kept
        Roots that stay until the end.
    """
    last: dict[fx.Node, fx.Node] = {}
    readers: dict[fx.Node, int] = {}
    for root in order:
        for leaf in found.arguments(root):
            last[leaf] = root
            readers[leaf] = readers.get(leaf, 0) + 1
    fixed = set(kept)
    chosen: dict[fx.Node, fx.Node] = {}
    for root in order:
        if found.roles[root] is not Role.POINTWISE:
            continue
        candidates = [
            leaf
            for leaf in found.arguments(root)
            if last[leaf] is root
            and leaf not in fixed
            and found.roles[leaf] is not Role.INPUT
            and _alike(leaf, root)
            and _read_in_place(found, root, leaf)
        ]
        if candidates:
            # The one with the fewest other readers: it is the likeliest to die here.
            chosen[root] = min(candidates, key=lambda leaf: (readers[leaf], found.place[leaf]))
    return chosen


def _alike(leaf: fx.Node, root: fx.Node) -> bool:
    """Whether a result has the data type and the bytes of a tensor, and both fill their memory."""
    a, b = leaf.meta.get("val"), root.meta.get("val")
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    return (
        a.dtype == b.dtype
        and a.device == b.device
        and nbytes(leaf) == nbytes(root) == b.numel() * b.dtype.itemsize
        and a.numel() == b.numel()
    )


def _read_in_place(found: Expressions, root: fx.Node, leaf: fx.Node) -> bool:
    """Whether every element of a leaf is read for the same element of the result."""
    wanted = root.meta["val"]
    reached = {leaf}
    for item in found.closure(root):
        if reached.isdisjoint(item.all_input_nodes):
            continue
        value = item.meta.get("val")
        moves = found.roles[item] is not Role.FREE and not _elementwise(item)
        if moves or not isinstance(value, torch.Tensor) or not _same_places(value, wanted):
            return False
        reached.add(item)
    return _same_places(leaf.meta["val"], wanted)


def _elementwise(node: fx.Node) -> bool:
    """Whether a node computes each element from the elements at its place."""
    target = node.target
    tagged = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    return tagged or str(target).startswith(
        ("aten.clone", "aten._to_copy", "prims.convert_element")
    )


def _same_places(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two values lay the same number of elements out in the same order."""
    if a.numel() != b.numel():
        return False
    if a.shape == b.shape:
        return a.stride() == b.stride()
    return a.is_contiguous() and b.is_contiguous()
