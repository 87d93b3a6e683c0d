"""What a step reads from outside its modules: closures, globals, containers, plain functions.

Tensors found there are read anew in each call, from the place where they were found; numbers, flags
and words in the closures and globals of the user's functions are compared with what they were.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLAIN = (bool, int, float, str, type(None))
_DEPTH, _MOST, _CALLS = 5, 20_000, 2
# libraries that do not change their own globals while a model trains
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "transformers", "lowtide"}


@dataclass(frozen=True)
class Place:
    """Where something was found.

    Attributes
    ----------
    path
        Path of the module below which it is; None if it is below `root`.
    root
        A function or other object that copies of a module share.
    code
        What leads there, as Python: `.__closure__[0].cell_contents`.
    label
        What to call it in a message.
    value
        For a tensor: the value of the program that it is; otherwise -1.
    plain
        For a number, flag or word: what it was.
    """

    path: str | None
    root: Any
    code: str
    label: str
    value: int = -1
    plain: Any = None

    def read(self, modules: Mapping[str, nn.Module]) -> Any:
        """What is there now; `Gone` if nothing is."""
        root = self.root if self.path is None else modules.get(self.path)
        try:
            return eval(f"root{self.code}", {"root": root})
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return Gone


class Gone:
    """Stands for what is not there any more."""


def places_of(
    modules: Mapping[str, nn.Module], loss_fn: Any, constants: Mapping[int, int]
) -> tuple[Place, ...]:
    """All places below modules and loss of the tensors `constants` (id to value) and of numbers."""
    return tuple(_Search(modules, constants).run(loss_fn))


class _Search:
    """Breadth first, each object once, tensors at every place."""

    def __init__(self, modules: Mapping[str, nn.Module], constants: Mapping[int, int]) -> None:
        self.modules, self.constants = modules, constants
        self.own = {id(module) for module in modules.values()}
        self.seen: set[int] = set()
        self.keep: list[Any] = []
        self.todo: deque[tuple[str | None, Any, str, str, Any, int, int]] = deque()

    def run(self, loss_fn: Any) -> Iterator[Place]:
        """The places."""
        if not isinstance(loss_fn, nn.Module):
            self._add(None, loss_fn, "", "the loss", loss_fn, 0, 0)
        for path, module in self.modules.items():
            where = path or "the model"
            forward = getattr(type(module), "forward", None)
            self._add(None, forward, "", f"forward of {where}", forward, 0, 0)
            for name, item in module.__dict__.items():
                if name in ("_parameters", "_buffers", "_modules") or isinstance(
                    item, torch.Tensor
                ):
                    continue  # registered, or looked at as an attribute
                code, label = f".__dict__[{name!r}]", f"{path}.{name}" if path else name
                if isinstance(item, types.FunctionType):
                    self._add(None, item, "", label, item, 0, 0)
                else:
                    self._add(path, None, code, label, item, 0, 0)
        while self.todo and len(self.seen) < _MOST:
            yield from self._look(*self.todo.popleft())

    def _add(self, *entry: Any) -> None:
        self.todo.append(entry)

    def _look(
        self, path: str | None, root: Any, code: str, label: str, item: Any, depth: int, calls: int
    ) -> Iterator[Place]:
        if isinstance(item, torch.Tensor):
            if id(item) in self.constants:
                yield Place(path, root, code, label, value=self.constants[id(item)])
            return
        if isinstance(item, (*_PLAIN, type, types.ModuleType)) or depth > _DEPTH:
            return
        if id(item) in self.seen or id(item) in self.own:
            return
        self.seen.add(id(item))
        self.keep.append(item)
        for step, name, inner in self._inside(item):
            found = (path, root, code + step, f"{name} of {label}" if name else label)
            mine = isinstance(item, types.FunctionType) and _users(item)
            if mine and type(inner) in _PLAIN:
                yield Place(*found, plain=inner)
            called = isinstance(item, types.FunctionType) and isinstance(inner, types.FunctionType)
            if called and (calls >= _CALLS or not _users(inner)):
                continue
            self._add(*found, inner, depth + 1, calls + called)

    def _inside(self, item: Any) -> Iterator[tuple[str, str, Any]]:
        """Step, name and content of what an object holds."""
        if isinstance(item, types.FunctionType):
            yield from _of_function(item)
        elif isinstance(item, types.MethodType):
            yield ".__func__", "", item.__func__
            yield ".__self__", "", item.__self__
        elif isinstance(item, functools.partial):
            for step in (".func", ".args", ".keywords"):
                yield step, "", getattr(item, step[1:])
        elif isinstance(item, dict):
            for key, inner in list(item.items()):
                if type(key) in (str, int):
                    yield f"[{key!r}]", f"[{key!r}]", inner
        elif isinstance(item, (list, tuple)):
            for index, inner in enumerate(item):
                yield f"[{index}]", f"[{index}]", inner
        elif isinstance(item, nn.Module):
            for table in (item._parameters, item._buffers, item._modules):
                which = next(
                    n for n in ("_parameters", "_buffers", "_modules") if getattr(item, n) is table
                )
                for name, inner in table.items():
                    yield f".{which}[{name!r}]", name, inner
            for name, inner in item.__dict__.items():
                if isinstance(inner, torch.Tensor):
                    yield f".__dict__[{name!r}]", name, inner
        elif type(item).__module__.split(".")[0] not in _LIBRARIES - {"types", "argparse"}:
            state = getattr(item, "__dict__", None)
            for name, inner in list(state.items()) if type(state) is dict else ():
                yield f".__dict__[{name!r}]", name, inner


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Closure, the globals that it names, and defaults."""
    for index, cell in enumerate(function.__closure__ or ()):
        try:
            inner = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield f".__closure__[{index}].cell_contents", function.__code__.co_freevars[index], inner
    if _users(function):
        for name in dict.fromkeys(_names(function.__code__)):
            if name in function.__globals__:
                yield f".__globals__[{name!r}]", f"global {name}", function.__globals__[name]
    for index, inner in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{index}]", f"default {index}", inner
    for name, inner in (function.__kwdefaults__ or {}).items():
        yield f".__kwdefaults__[{name!r}]", f"default {name}", inner


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that code and the functions written inside it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _users(function: Any) -> bool:
    """Whether a function is the user's, not a library's."""
    return (function.__module__ or "").split(".")[0] not in _LIBRARIES
