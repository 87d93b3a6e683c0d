"""Hooks that PyTorch runs on all modules of the process: in a replayed step they would not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.modules import module as _module

from ...frontends.torch.outside.hooks import TABLES, hooks_on_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..generate.literals import Namespace


def hook_lines(names: Namespace) -> list[str]:
    """Source lines that return None if there is one."""
    names.globals["hooks_on_all"] = hooks_on_all
    tables = [names.bind(getattr(_module, table), table) for table in TABLES]
    return [f"if ({' or '.join(tables)}) and any(hooks_on_all()): return None"]


def hook_differences() -> Iterator[tuple[str, str]]:
    """What is registered, and what to do about it."""
    for kind, hook in hooks_on_all():
        name = getattr(hook, "__qualname__", type(hook).__name__)
        yield (
            f"a {kind} is registered on all modules of the process ({name}) and would not run",
            "remove it, or call the original model",
        )
