"""Whether an iterator of Python's own has moved on, without asking it for an item."""

from __future__ import annotations

import itertools
import types
import warnings
from collections.abc import Iterator
from typing import Any

from .alike import same_literal
from .holders import is_plain

_DEPTH = 5  # of iterators that take from iterators
_REPEATED = (itertools.count, itertools.repeat)


class Unknown(Exception):
    """Nothing tells where an iterator is."""


def is_iterator(item: Any) -> bool:
    """Whether something is an iterator of Python's own, such as `itertools.count()`."""
    return isinstance(item, Iterator) and type(item).__module__ in ("builtins", "itertools")


def position_of(iterator: Any) -> Any:
    """Where an iterator is, as `moved` compares it; None if nothing tells.

    A generator is where its code stands, with what its variables hold. The others say by what they
    would be pickled how far they are; those that they take from are looked at in turn.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of itertools are not to be pickled from 3.14 on
            return _position(iterator, 0)
    except Unknown:
        return None


def moved(before: Any, after: Any) -> bool:
    """Whether two positions of one iterator differ."""
    if before is after:
        return False
    if isinstance(before, (list, tuple)) and type(before) is type(after):
        if len(before) != len(after):
            return True
        return any(moved(a, b) for a, b in zip(before, after, strict=True))
    return not (is_plain(before) and is_plain(after) and same_literal(before, after))


def _position(item: Any, depth: int) -> Any:
    if isinstance(item, types.GeneratorType):
        frame = item.gi_frame
        if frame is None:  # at its end
            return ()
        held = tuple(frame.f_locals.items())
        return frame.f_lasti, tuple((name, _inside(inner, depth)) for name, inner in held)
    if type(item) in _REPEATED:
        return repr(item)
    if type(item) is type(iter(int, 1)):
        raise Unknown  # calls a function until it says the end
    try:
        pickled = item.__reduce__()
    except Exception as error:
        raise Unknown from error
    return tuple(_inside(part, depth) for part in pickled)


def _inside(item: Any, depth: int) -> Any:
    """A part of an iterator: positions for the iterators in it."""
    if is_iterator(item) and depth < _DEPTH:
        return _position(item, depth + 1)
    if isinstance(item, Iterator):
        raise Unknown  # somebody else's
    if type(item) is tuple:
        return tuple(_inside(part, depth) for part in item)
    return item
