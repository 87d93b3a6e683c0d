"""Backward without the gradients of outputs that the caller's loss does not use.

Plain PyTorch never visits what hangs on such outputs alone. Zeros in place of their gradients are
not the same: a zero times an infinite derivative is no number, and a sum with zeros is dense where
the gradient alone was expanded, which kernels may round otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...frontends.torch.program import ValueRef
from .gradients import behind_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...frontends.torch.program import Call, Program

_aten: Any = torch.ops.aten


class Missing:
    """What is not there if some tangents do not arrive.

    Parameters
    ----------
    program
        The step.
    absent
        Places of the tangents, among the tangents.
    taken
        Storages whose memory is overwritten or handed out: nothing else may lie there.
    """

    def __init__(
        self, program: Program, absent: frozenset[int], taken: frozenset[int] = frozenset()
    ) -> None:
        self.taken = taken
        self._program = program
        self._absent = absent
        self._behind = behind_values(program)

    def dead(self, value: int) -> bool:
        """Whether a value hangs on absent tangents, and on no other."""
        behind = self._behind(value)
        return bool(behind) and behind <= self._absent

    def passing(self, call: Call) -> int | None:
        """The gradient that a sum of two is, if the other one is not there; None if it is no such.

        Autograd sums the gradients of a value that was used several times.
        """
        if call.target is not _aten.add.Tensor or len(call.args) != 2 or call.kwargs:
            return None
        if not all(isinstance(argument, ValueRef) for argument in call.args):
            return None
        values = [argument.index for argument in call.args]
        there = [value for value in values if not self.dead(value)]
        if len(there) != 1 or not self._behind(there[0]):
            return None
        (made,) = call.outputs
        if made is None:
            return None
        found, wanted = (self._program.value_meta[value] for value in (there[0], made))
        same = tuple(found.shape) == tuple(wanted.shape) and found.dtype == wanted.dtype
        return there[0] if same else None

    def zeros(self, value: int) -> Callable[[], torch.Tensor]:
        """Makes what an operator is given for a value that is not there, as autograd does."""
        meta = self._program.value_meta[value]
        return partial(_zeros, tuple(meta.shape), tuple(meta.stride), meta.dtype, meta.device)


def _zeros(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
