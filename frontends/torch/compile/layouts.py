"""Copies of inputs that inductor makes so that convolutions read them with channels last.

They are made in the forward and saved for the backward in the place of what they are copied from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..assemble import allocated
from .inline import nbytes
from .private import prefers_channels_last

if TYPE_CHECKING:
    from torch import fx

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_convolution: Any = torch.ops.aten.convolution.default


def copied_bytes(module: fx.GraphModule, device: torch.device) -> int:
    """Bytes of all inputs of a joint graph that inductor copies for its convolutions."""
    if not prefers_channels_last(module):
        return 0
    read = {
        item
        for node in module.graph.find_nodes(op="call_function", target=_convolution)
        for item in node.args[:2]
    }
    return sum(
        allocated(nbytes(node), node.meta["val"].device, device)
        for node in read
        if node.op == "placeholder" and not _has_channels_last(node.meta["val"])
    )


def _has_channels_last(value: torch.Tensor) -> bool:
    layout = _LAST.get(value.dim())
    return layout is None or value.is_contiguous(memory_format=layout)
