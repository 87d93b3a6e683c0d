"""What hangs below a module's attributes: containers in containers, and plain objects.

Each container that can be reached is noted with a shallow copy, once, so that cycles end and a
change at any level shows in the container that it was made in.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from .outside.arrays import array_of

if TYPE_CHECKING:
    from collections.abc import Callable

_DEPTH, _MOST = 6, 20_000
_CONTAINERS = (dict, list, set, deque)
_LEAVES = (torch.Tensor, nn.Module, type, FunctionType, MethodType, ModuleType)
# libraries whose objects keep state of their own: caches, locks, handles
_CLOSED = (sys.stdlib_module_names - {"types", "collections", "argparse"}) | {"torch", "numpy"}


class Nested:
    """The content of containers and objects below attributes, as it was."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[str, Any, Any]] = {}

    def note(self, label: str, value: Any, depth: int = 0) -> None:
        """Remember the content of `value` and of all below it; `label` is for the report."""
        if isinstance(value, _LEAVES) or depth > _DEPTH or len(self._noted) >= _MOST:
            return
        if isinstance(value, tuple):
            for item in value:
                self.note(label, item, depth + 1)
            return
        content = _content(value)
        if content is None or id(value) in self._noted:
            return
        before = copied(content)
        self._noted[id(value)] = (label, content, (value, before))
        if array_of(content) is not None:
            return
        for item in before.values() if isinstance(before, dict) else before:
            self.note(label, item, depth + 1)

    def restore(self, same: Callable[[Any, Any], bool], private: tuple[str, ...]) -> str:
        """Undo what changed; returns the label of something that did, or nothing."""
        found = ""
        for label, content, (_, before) in self._noted.values():
            if isinstance(content, dict):
                keys = [*before, *(key for key in content if key not in before)]
                changed = [
                    key
                    for key in keys
                    if not (key in before and key in content and same(content[key], before[key]))
                ]
                changed = [k for k in changed if not (isinstance(k, str) and k.startswith(private))]
            elif isinstance(content, set):
                changed = [None] if content != before else []
            elif array_of(content) is not None:
                changed = [None] if not same(content, before) else []
            else:
                changed = [None] if not same(list(content), list(before)) else []
            if not changed:
                continue
            found = found or label
            refill(content, before)
        return found


def copied(value: Any) -> Any:
    """A copy of a container or an array, one level deep; anything else as it is."""
    if isinstance(value, _CONTAINERS):
        return value.copy()
    return value if array_of(value) is None else copy.copy(value)


def refill(container: Any, content: Any) -> None:
    """Have a container or an array hold `content` again."""
    if isinstance(container, np.ndarray):
        container[...] = content
    elif isinstance(container, (dict, set, deque)):
        container.clear()
        (container.extend if isinstance(container, deque) else container.update)(content)
    else:
        container[:] = content


def _content(value: Any) -> Any:
    """The container that holds what `value` holds; None for what is not looked into."""
    if isinstance(value, _CONTAINERS) or array_of(value) is not None:
        return value
    if type(value).__module__.split(".")[0] in _CLOSED:
        return None
    inside = getattr(value, "__dict__", None)
    return inside if type(inside) is dict else None
