"""Hooks that PyTorch runs on all modules of the process: in a replayed step they would not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.modules import module as _module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..generate.literals import Namespace

_TABLES: dict[str, str] = {
    "_global_forward_hooks": "forward hook",
    "_global_forward_pre_hooks": "forward pre-hook",
    "_global_backward_hooks": "backward hook",
    "_global_backward_pre_hooks": "backward pre-hook",
}
# what only notes which module runs
_HARMLESS = ("torch.utils.module_tracker",)


def hooks_on_all() -> Iterator[tuple[str, Any]]:
    """Kind and function of each hook that may change something."""
    for table, kind in _TABLES.items():
        for hook in getattr(_module, table, {}).values():
            origin = getattr(hook, "__module__", None) or type(hook).__module__
            if not str(origin).startswith(_HARMLESS):
                yield kind, hook


def hook_lines(names: Namespace) -> list[str]:
    """Source lines that return None if there is one."""
    names.globals["hooks_on_all"] = hooks_on_all
    tables = [names.bind(getattr(_module, table), table) for table in _TABLES]
    return [f"if ({' or '.join(tables)}) and any(hooks_on_all()): return None"]


def hook_differences() -> Iterator[tuple[str, str]]:
    """What is registered, and what to do about it."""
    for kind, hook in hooks_on_all():
        name = getattr(hook, "__qualname__", type(hook).__name__)
        yield (
            f"a {kind} is registered on all modules of the process ({name}) and would not run",
            "remove it, or call the original model",
        )
