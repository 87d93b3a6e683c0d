"""Whether many tensors look as they did at the last call: one question for all of them.

PyTorch has it for its compiler: type, data type, device, shape, strides and whether a gradient is
required. It takes a few microseconds where separate tests of a small network take dozens. It is
stricter than the guards need, and private: what it turns down, or where it is not there, is looked
at one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def _no(*_: torch.Tensor) -> bool:
    return False


class Looks:
    """Remembers how tensors look.

    Attributes
    ----------
    same
        `same(*tensors)`: whether they look like those that were last remembered.
    """

    def __init__(self) -> None:
        self.same: Callable[..., bool] = _no
        dynamo: Any = getattr(torch._C, "_dynamo", None)
        self._compare: Any = getattr(getattr(dynamo, "guards", None), "TensorGuards", None)

    def remember(self, *tensors: torch.Tensor) -> None:
        """Take note of these, which have passed every test."""
        if self._compare is None:
            return
        try:
            same = self._compare(
                *tensors,
                dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
                dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
            ).check
            known = same(*tensors)
        except (RuntimeError, TypeError):
            known = False
        if known:
            self.same = same
        else:  # it cannot compare such tensors at all: not one that is there twice, for instance
            self.same, self._compare = _no, None
