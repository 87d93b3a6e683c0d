"""What containers, objects, classes, modules and functions hold, and how Python gets there."""

from __future__ import annotations

import types
from collections import deque
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .reads import LIBRARIES
from .uses import globals_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .reads import Reads

_SETTINGS = (bool, int, float, str, type(None))
# and subclasses of them: np.float64 is a float
_PLAIN = (
    *_SETTINGS, complex, bytes, range, slice, type(...), Enum, Fraction, Decimal, date, time,
    timedelta, PurePath, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    np.generic, np.dtype,
)  # fmt: skip
# libraries whose objects are looked into
_OPEN = {"types", "argparse", "transformers", "_thread"}
_DISTRIBUTIONS = "torch.distributions."  # a prior, whose tensors the step reads


class Entry(NamedTuple):
    """Key or attribute, the Python that leads there, how it is shown, and what is there."""

    key: Any
    steps: tuple[str, ...]
    shown: str
    item: Any


def is_plain(item: Any) -> bool:
    """Whether something is a number, flag or word, or another constant that cannot change."""
    return isinstance(item, _PLAIN)


def is_word(item: Any) -> bool:
    """Whether something is plain and none of the `settings` of a program."""
    return type(item) not in _SETTINGS and is_plain(item)


def is_constant(item: Any) -> bool:
    """Whether something is plain, or a function: another one in its place is another step."""
    return is_plain(item) or isinstance(item, (types.FunctionType, types.BuiltinFunctionType))


def content(item: Any) -> Any:
    """A copy of a container of numbers only; None for another, or an empty dict."""
    if isinstance(item, (list, deque)) or type(item) is tuple:
        return tuple(item) if item and all(is_plain(i) for i in item) else None
    if isinstance(item, dict):
        return dict(item) if item and all(is_plain(i) for i in item.values()) else None
    if isinstance(item, (set, frozenset)):
        return frozenset(item) if all(is_plain(i) for i in item) else None
    return None


def entries(item: Any, reads: Reads) -> Iterator[Entry]:
    """What a holder holds; of classes and modules only what `reads` names."""
    if isinstance(item, dict):
        for key, inner in list(item.items()):
            if type(key) in (str, int) or _is_written(key):
                yield Entry(key, (f"[{key!r}]",), f"[{key!r}]", inner)
    elif isinstance(item, (list, tuple, deque)):
        for index, inner in enumerate(item):
            yield Entry(index, (f"[{index}]",), f"[{index}]", inner)
    elif isinstance(item, np.ndarray):  # of objects
        for index, inner in enumerate(item.flat):
            yield Entry(index, (f".flat[{index}]",), f"[{index}]", inner)
    elif isinstance(item, types.ModuleType):
        if item.__name__.split(".")[0] not in LIBRARIES:
            for name in sorted(reads.names & item.__dict__.keys()):
                yield Entry(name, (".__dict__", f"[{name!r}]"), f".{name}", item.__dict__[name])
    elif isinstance(item, type):
        yield from _of_class(item, reads)
    elif _is_open(type(item)):
        yield from _of_object(item, reads)


def _is_written(key: Any) -> bool:
    """Whether a key is a tuple that Python can read again as it is shown."""
    return type(key) is tuple and all(type(part) in (str, int, bool, type(None)) for part in key)


def looked_up(item: Any, holder: str, reads: Reads) -> frozenset[str]:
    """Attributes that the step may look up in an object, or keys, that it knows as `holder`.

    Of the user's objects those whose names stand in code that ran; of a library's object, which has
    many, those for which code asks under that name of the object.
    """
    kind = type(item)
    if isinstance(item, (dict, type, types.ModuleType)):
        return reads.names
    if kind.__module__.split(".")[0] not in LIBRARIES - {"types", "argparse"}:
        opened = not reads.opened.isdisjoint(("*", holder))
        return reads.names.union(attributes(item) or ()) if opened else reads.names
    found = {key for name, key in reads.read if name == holder and isinstance(key, str)}
    if holder in reads.whole:
        found |= reads.users
    if holder in reads.computed:
        found |= reads.words
    mapped = getattr(kind, "attribute_map", None)  # other names that a class knows
    if type(mapped) is dict:
        found |= {own for name, own in mapped.items() if name in found}
    modules = {base.__module__ for base in kind.__mro__}
    return frozenset(found | {key for module, key in reads.own if module in modules})


def attributes(item: Any) -> dict[str, Any] | None:
    """The attributes of an object that is looked into; None for another."""
    if isinstance(item, (type, types.ModuleType)) or not _is_open(type(item)):
        return None
    state = getattr(item, "__dict__", None)
    return state if type(state) is dict else None


def _of_object(item: Any, reads: Reads) -> Iterator[Entry]:
    """Attributes of an object, in it, in slots and in its classes."""
    inside = dict(attributes(item) or {})
    for name, inner in inside.items():
        yield Entry(name, (".__dict__", f"[{name!r}]"), f".{name}", inner)
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in inside and name.isidentifier() and hasattr(item, name):
                yield Entry(name, (f".{name}",), f".{name}", getattr(item, name))
    for entry in _of_class(type(item), reads):
        if entry.key not in inside:
            yield entry


def _of_class(kind: type, reads: Reads) -> Iterator[Entry]:
    """Attributes of a class and its bases that are neither functions nor descriptors."""
    met: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] in LIBRARIES:
            continue
        for name in sorted(reads.names & vars(base).keys() - met):
            met.add(name)
            inner = vars(base)[name]
            nested = isinstance(inner, type) and _is_open(inner)
            value = not callable(inner) and not hasattr(inner, "__get__")
            if (value or nested) and not name.startswith("__"):
                yield Entry(name, (f".{name}",), f".{name}", inner)


def _is_open(kind: type) -> bool:
    """Whether objects of a class may hold the user's numbers."""
    name = kind.__module__
    return name.split(".")[0] not in LIBRARIES - _OPEN or name.startswith(_DISTRIBUTIONS)


def of_function(function: types.FunctionType) -> Iterator[tuple[str, str, str, Any]]:
    """Closure, the globals that it names, and defaults: step, label, name and content."""
    for index, cell in enumerate(function.__closure__ or ()):
        try:
            inner = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        name = function.__code__.co_freevars[index]
        yield f".__closure__[{index}].cell_contents", name, name, inner
    if is_users(function):
        for name in dict.fromkeys(_names(function.__code__)):
            if name in function.__globals__:
                inner = function.__globals__[name]
                yield f".__globals__[{name!r}]", f"global {name}", name, inner
    for index, inner in enumerate(function.__defaults__ or ()):
        first = function.__code__.co_argcount - len(function.__defaults__ or ())
        name = function.__code__.co_varnames[first + index]
        yield f".__defaults__[{index}]", f"default {name}", name, inner
    for name, inner in (function.__kwdefaults__ or {}).items():
        yield f".__kwdefaults__[{name!r}]", f"default {name}", name, inner


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals that code and the functions written inside it name."""
    yield from sorted(globals_of(code))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def is_users(function: Any) -> bool:
    """Whether a function is the user's, not a library's."""
    return (function.__module__ or "").split(".")[0] not in LIBRARIES
