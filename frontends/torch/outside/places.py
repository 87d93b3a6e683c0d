"""Places outside of the modules from which a step reads, and what is compared there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from .alike import same_literal, typed
from .arrays import Numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
_SHOWN = 60


class Gone:
    """Stands for what is not there any more."""


@dataclass(frozen=True)
class Length:
    """So many entries that a container had; they are compared one by one."""

    count: int


@dataclass(frozen=True)
class Absent:
    """Keys or attributes that the step asks for and that were not there, beside `count` others."""

    keys: frozenset[str]
    count: int


@dataclass(frozen=True)
class Content:
    """All that a container of numbers held: a tuple, dict or frozenset."""

    items: Any

    def __eq__(self, other: object) -> bool:
        """The same numbers of the same types."""
        return isinstance(other, Content) and self.same(other.items)

    __hash__ = None  # type: ignore[assignment]  # what it holds may be a dict

    def same(self, now: Any) -> bool:
        """Whether a container holds the same, in numbers of the same types."""
        was = self.items
        if isinstance(was, frozenset):
            if not isinstance(now, (set, frozenset)) or len(now) != len(was):
                return False
            if self._words:  # nothing of another type is equal to a word
                return now == was
            # Equal sets are mostly in the same order.
            return all(map(is_, now, was)) or typed(now) == typed(was)
        if len(now) != len(was):
            return False
        if isinstance(was, dict):
            return self._alike(now, was) and self._alike(now.values(), was.values())
        return self._alike(now, was)

    @cached_property
    def _words(self) -> bool:
        return all(type(item) is str for item in self.items)

    @staticmethod
    def _alike(now: Any, was: Any) -> bool:
        return all(map(is_, now, was)) or all(map(same_literal, now, was))


@dataclass(frozen=True)
class Place:
    """Where something was found.

    Attributes
    ----------
    path
        Path of the module below which it is; None if it is below `root`.
    root
        A function or other object that copies of a module share.
    steps
        What leads there, as Python: `.__closure__[0]`, `.cell_contents`.
    label
        What to call it in a message.
    value
        For a tensor: the value of the program that it is; otherwise -1.
    plain
        For a number, flag or word: what it was. For a container or array: what is compared.
    """

    path: str | None
    root: Any
    steps: tuple[str, ...]
    label: str
    value: int = -1
    plain: Any = None

    def read(self, modules: Mapping[str, nn.Module]) -> Any:
        """What is there now; `Gone` if nothing is."""
        root = self.root if self.path is None else modules.get(self.path)
        try:
            return eval(f"root{''.join(self.steps)}", {"root": root})
        except _ERRORS:
            return Gone

    def remove(self, modules: Mapping[str, nn.Module]) -> None:
        """Take out what is there, if it is in something that can be changed."""
        root = self.root if self.path is None else modules.get(self.path)
        with contextlib.suppress(*_ERRORS):
            exec(f"del root{''.join(self.steps)}", {"root": root})

    def difference(self, modules: Mapping[str, nn.Module]) -> str | None:
        """What is different now about something that is no tensor, in words."""
        now, was = self.read(modules), self.plain
        try:
            found = self._difference(now, was)
        except _ERRORS:
            found = "of another kind"
        return None if found is None else f"{self.label} is {found} when captured"

    def _difference(self, now: Any, was: Any) -> str | None:
        if now is Gone:
            return f"gone and was {_words(was)}"
        if isinstance(was, Length):
            same = len(now) == was.count
            return None if same else f"of length {len(now)} and was of length {was.count}"
        if isinstance(was, Absent):
            new = sorted(was.keys & now.keys())
            return f"with {new[0]!r} = {_words(now[new[0]])} and was without" if new else None
        if isinstance(was, Numbers):
            return None if was.same(now) else was.difference(now)
        if isinstance(was, Content):
            return None if was.same(now) else f"{_words(now)} and was {_words(was.items)}"
        return None if same_literal(now, was) else f"{_words(now)} and was {_words(was)}"


def _words(item: Any) -> str:
    """A short text of something."""
    if isinstance(item, (FunctionType, BuiltinFunctionType)):
        return f"the function {item.__qualname__}"
    text = repr(item)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
