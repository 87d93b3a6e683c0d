"""Hooks that PyTorch runs on all modules of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.modules import module as _module

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES: dict[str, str] = {
    "_global_forward_hooks": "forward hook",
    "_global_forward_pre_hooks": "forward pre-hook",
    "_global_backward_hooks": "backward hook",
    "_global_backward_pre_hooks": "backward pre-hook",
}
# what only notes which module runs
_HARMLESS = ("torch.utils.module_tracker",)


def hooks_on_all() -> Iterator[tuple[str, Any]]:
    """Kind and function of each hook that may change something."""
    for table, kind in TABLES.items():
        for hook in getattr(_module, table, {}).values():
            origin = getattr(hook, "__module__", None) or type(hook).__module__
            if not str(origin).startswith(_HARMLESS):
                yield kind, hook
