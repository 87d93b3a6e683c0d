"""Takes the output of a step apart into leaves, and puts it together again.

Dataclasses and plain objects that pytree does not know (a key-value cache, for instance) are taken
apart by their attributes. The user's classes are not registered anywhere: an internal node stands
for them in the structure.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

_DEEPEST = 9


class _Record:
    """Stands for an object in a tree."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance


def _flatten_record(record: _Record) -> tuple[list[Any], Any]:
    names = _attributes(record.instance)
    values = [wrap_records(getattr(record.instance, name)) for name in names]
    return values, (type(record.instance), tuple(names))


def _unflatten_record(values: Any, context: Any) -> Any:
    kind, names = context
    instance = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(instance, name, value)
    return instance


pytree.register_pytree_node(
    _Record, _flatten_record, _unflatten_record, serialized_type_name="lowtide.Record"
)


def _attributes(instance: Any) -> list[str]:
    """Names of what an object holds."""
    if dataclasses.is_dataclass(instance):
        return [field.name for field in dataclasses.fields(instance)]
    return list(getattr(instance, "__dict__", ()))


def wrap_records(tree: Any) -> Any:
    """The tree with every object that pytree cannot open, and that holds tensors, as a node."""

    def wrap(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) or not holds_tensors(leaf):
            return leaf
        return _Record(leaf)

    return pytree.tree_map(wrap, tree)


def flatten_output(out: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves of an output and their structure; `tree_unflatten` gives the same classes back."""
    return pytree.tree_flatten(wrap_records(out))


def holds_tensors(leaf: Any, depth: int = _DEEPEST) -> bool:
    """Whether an object that pytree cannot open has tensors inside."""
    if isinstance(leaf, torch.Tensor):
        return True
    if depth == 0 or leaf is None or isinstance(leaf, (type, str, bytes, int, float, complex)):
        return False
    if isinstance(leaf, dict):
        return any(holds_tensors(item, depth - 1) for item in leaf.values())
    if isinstance(leaf, (list, tuple, set, frozenset)):
        return any(holds_tensors(item, depth - 1) for item in leaf)
    if isinstance(leaf, nn.Module) or (callable(leaf) and not dataclasses.is_dataclass(leaf)):
        return False
    return any(holds_tensors(getattr(leaf, n, None), depth - 1) for n in _attributes(leaf))
