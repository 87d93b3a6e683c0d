"""Calls whose results round otherwise in a replayed step, for the sake of a layout or an autocast.

A trace has no writes in place: it makes a new tensor, and a dense one where what is written has
gaps between its elements. Kernels that read it then take other vectors of elements together, and
so round otherwise; draws fill it in another order.

Some kernels call others that autocast makes narrow. A replayed step runs without autocast, with the
casts that were traced, and those inside of a kernel are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NARROW_INSIDE = {"affine_grid", "affine_grid_generator", "bilinear"}


def refuse_inner_casts(name: str, arguments: Iterable[Any], origin: str) -> None:
    """Refuse a function that computes narrowly inside of its kernel, where autocast is on."""
    if name not in _NARROW_INSIDE:
        return
    if any(torch.is_autocast_enabled(t.device.type) for t in _tensors(arguments)):
        raise CaptureError(
            f"{origin}: {name} rounds inside of its kernel as autocast says, which a replayed step "
            "cannot repeat; call it under torch.autocast(..., enabled=False)"
        )


def gapped(arguments: Iterable[Any]) -> list[tuple[torch.Tensor, int]]:
    """Arguments whose memory has gaps, and how often each was written."""
    return [
        (t, t._version)
        for t in _tensors(arguments)
        if not (_dense(t) if t._base is None else _dense(t._base))
        and (t.is_floating_point() or t.is_complex())
    ]


def refuse_written(found: Iterable[tuple[torch.Tensor, int]], name: str, origin: str) -> None:
    """Refuse a call that wrote one of these."""
    if any(tensor._version != version for tensor, version in found):
        raise CaptureError(
            f"{origin}: {name} writes in place into memory with gaps (a part of a larger tensor), "
            "where a replayed step rounds otherwise; write into a .contiguous() copy"
        )


def _tensors(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Strided tensors among arguments."""
    for item in arguments:
        if isinstance(item, torch.Tensor) and item.layout is torch.strided:
            yield item


def _dense(tensor: torch.Tensor) -> bool:
    """Whether elements lie side by side, in whatever order."""
    wanted = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != wanted:
            return tensor.numel() == 0
        wanted *= size
    return True
