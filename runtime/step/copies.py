"""Copies of modules that hold what their last forward computed, which `copy.deepcopy` refuses."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn


def copy_module(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy of a module.

    Weights that pruning and `weight_norm` compute before each forward are attributes with a
    history. The copy gets their values, and computes its own in its next forward.

    Parameters
    ----------
    memo
        That of `copy.deepcopy`: copies of what was met before.
    """
    for part in module.modules():
        for value in part.__dict__.values():
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor) and not item.is_leaf:
                    memo.setdefault(id(item), item.detach().clone())
    copied: nn.Module = copy.deepcopy(module, memo)
    return copied
