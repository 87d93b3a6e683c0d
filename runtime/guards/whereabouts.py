"""Whether tensors that backward reads still lie where they lay in forward.

`p.data = other` changes no version. Plain PyTorch then goes on with the old memory where an
operator saved a view of `p`, and with the new one where it saved `p` itself; a replay, which runs
views and operators again, cannot do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

address = torch.Tensor.data_ptr


class Whereabouts:
    """Knows from the step before where the tensors of a module lie: mostly it is still true.

    Parameters
    ----------
    held
        How many of the tensors are the module's; those that a call brings or makes come behind
        them.
    """

    def __init__(self, held: int) -> None:
        self._held = held
        self._last: list[int] = []
        self._storages: list[int] = []

    def now(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Addresses of tensors: forward takes note of them."""
        found = [*map(address, tensors)]
        if found != self._last:
            held = self._held
            if found[:held] != self._last[:held] or not self._last:
                self._storages = [*map(_storage, tensors[:held])]
            self._last = found
        return found

    def moved(self, tensors: Sequence[torch.Tensor], before: Sequence[int]) -> int:
        """The first of `tensors` that has other memory than `before`; -1 if none has.

        A storage of the module may be emptied and filled again elsewhere (FSDP does so).
        """
        found = [*map(address, tensors)]
        if found == before:  # nearly always, and much faster than one by one
            return -1
        for place, tensor in enumerate(tensors):
            if found[place] != before[place] and (
                place >= self._held or _storage(tensor) != self._storages[place]
            ):
                return place
        return -1


def _storage(tensor: torch.Tensor) -> int:
    """What identifies a storage."""
    return int(tensor.untyped_storage()._cdata)
