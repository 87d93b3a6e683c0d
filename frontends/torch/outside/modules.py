"""The modules of a step by their paths: those of the model, and those of a loss that is one."""

from __future__ import annotations

from typing import Any

from torch import nn

LOSS = "loss_fn"


def modules_of(model: nn.Module, loss_fn: Any) -> dict[str, nn.Module]:
    """Modules by path; those of a loss module under `loss_fn`."""
    found = dict(model.named_modules(remove_duplicate=False))
    if isinstance(loss_fn, nn.Module):
        for name, module in loss_fn.named_modules(remove_duplicate=False):
            found[f"{LOSS}.{name}" if name else LOSS] = module
    return found
