"""Whether a step is one of several processes: a process group, modules that they share out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn

_HOME = "torch.distributed.fsdp"


def distributed() -> Any:
    """`torch.distributed` if a default process group exists here, else None."""
    module: Any = torch.distributed
    return module if module.is_available() and module.is_initialized() else None


def is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was applied to this module itself."""
    return any(
        c.__name__ == "FSDPModule" and c.__module__.startswith(_HOME) for c in type(module).__mro__
    )


def same_class(module: nn.Module, kind: type) -> bool:
    """Whether a module is of a class, or of the one that `fully_shard` makes of it."""
    found = type(module)
    return found is kind or (is_sharded(module) and kind in found.__mro__[1:4])
