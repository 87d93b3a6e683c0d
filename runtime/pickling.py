"""Makes captured programs picklable: PyTorch's operators and tree leaves are not by themselves."""

from __future__ import annotations

import copyreg
from typing import Any

import torch
from torch.utils import _pytree as pytree


def operator_named(name: str) -> Any:
    """The operator overload of that name: `aten::add.Tensor`."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def _reduce_operator(operator: Any) -> tuple[Any, tuple[str]]:
    return operator_named, (operator.name(),)


def leaf_spec() -> Any:
    """The tree specification of a leaf; building it by its class warns."""
    return pytree.tree_structure(0)


def register() -> None:
    """Teach `pickle` both; idempotent."""
    copyreg.pickle(torch._ops.OpOverload, _reduce_operator)
    if type(leaf_spec()) is not pytree.TreeSpec:
        copyreg.pickle(type(leaf_spec()), lambda spec: (leaf_spec, ()))
