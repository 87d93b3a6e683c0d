"""Caches of `functools`, which are reached through no name: those that hold tensors of a trace."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

from .moving import is_traced

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEPTH = 4  # of containers in what a cached function returns
_Cached = type(functools.lru_cache(len))


def clear_traced() -> str:
    """Empty the caches that hold tensors of a trace; the name of one, or nothing."""
    found = ""
    for item in gc.get_objects():
        if type(item) is not _Cached or str(item.__module__).startswith("torch."):
            continue
        if any(map(is_traced, _held(item, 0))):
            item.cache_clear()
            found = found or str(getattr(item, "__qualname__", "a function"))
    return found


def _held(item: Any, depth: int) -> Iterator[Any]:
    """What a cache holds, and what is in the containers there."""
    for inner in gc.get_referents(item):
        if isinstance(inner, type) or callable(inner):
            continue  # the function itself, and modules that it was called with
        yield inner
        if depth < _DEPTH and isinstance(inner, (dict, list, tuple)):
            yield from _held(inner, depth + 1)
