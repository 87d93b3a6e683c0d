"""What a step reads from outside its modules: closures, globals, containers, objects, functions.

Tensors found there are read anew in each call, from the place where they were found. Numbers, flags
and words are compared with what they were: those in closures and globals of the user's functions,
and those below whose names, all the way down, stand in code that the step ran (`Reads`).
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .arrays import Numbers, array_of
from .holders import (  # fmt: skip
    attributes,
    content,
    entries,
    is_constant,
    is_plain,
    is_users,
    is_word,
    looked_up,
    of_function,
)
from .moving import is_moving
from .places import Absent, Content, Length, Place
from .reads import DERIVATIVES, LIBRARIES, Reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DEPTH, _MOST, _CALLS = 5, 20_000, 2
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, np.ndarray)


class Found(NamedTuple):
    """An object on the way, and how it was reached; `named`: by names that the step looks up."""

    path: str | None
    root: Any
    steps: tuple[str, ...]
    label: str
    item: Any
    name: str = ""
    depth: int = 0
    calls: int = 0
    named: bool = True


def places_of(
    modules: Mapping[str, nn.Module],
    loss_fn: Any,
    constants: Mapping[int, int],
    reads: Reads,
) -> tuple[Place, ...]:
    """All places below modules and loss of the tensors `constants` (id to value) and of numbers."""
    found = Search(modules, constants, reads).run(loss_fn)
    return tuple(place for place in found if place.label not in reads.changing)


class Search:
    """Breadth first, each object once, tensors at every place.

    Attributes
    ----------
    moving
        What was found that a step may leave as another.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], constants: Mapping[int, int], reads: Reads
    ) -> None:
        self.modules, self.constants, self.reads = modules, constants, reads
        self.own = {id(module) for module in modules.values()}
        self.seen: set[int] = set()
        self.globals: set[tuple[int, str]] = set()
        self.keep: list[Any] = []
        self.todo: deque[Found] = deque()
        self.moving: list[Found] = []

    def run(self, loss_fn: Any) -> Iterator[Place]:
        """The places."""
        if not isinstance(loss_fn, nn.Module):
            self.todo.append(Found(None, loss_fn, (), "the loss", loss_fn))
        for path, module in self.modules.items():
            yield from self._start(path, module)
        yield from self._drain()
        # of functions that are not found above: methods, and what they call
        for name, wanted in self.reads.modules.items():
            scope = sys.modules[name].__dict__ if name in sys.modules else {}
            self.keep.append(scope)
            for key in sorted(wanted & scope.keys()):
                if (id(scope), key) not in self.globals:
                    yield from self._take(
                        Found(None, scope, (f"[{key!r}]",), f"global {key} of {name}",
                               scope[key], key)
                    )  # fmt: skip
        yield from self._drain()
        for key in sorted(self.reads.environment):
            yield Place(
                None, os.environ, (f".get({key!r})",), f"the environment's {key}",
                plain=os.environ.get(key),
            )  # fmt: skip

    def _start(self, path: str, module: nn.Module) -> Iterator[Place]:
        """Begin with the forward and the attributes of a module.

        Functions and what `Program.settings` has are compared elsewhere.
        """
        forward = getattr(type(module), "forward", None)
        label = f"forward of {path or 'the model'}"
        self.todo.append(Found(None, forward, (), label, forward))
        for name, item in module.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules") or isinstance(item, torch.Tensor):
                continue  # registered, or looked at as an attribute
            label = f"{path}.{name}" if path else name
            if isinstance(item, types.FunctionType):
                self.todo.append(Found(None, item, (), label, item))
            else:
                named = name in self.reads.names
                step = f".__dict__[{name!r}]"
                if named and (is_word(item) or isinstance(item, type)):
                    yield Place(path, None, (step,), label, plain=item)
                self.todo.append(Found(path, None, (step,), label, item, name, named=named))
        for kind in type(module).__mro__:
            if kind.__module__.split(".")[0] in LIBRARIES:
                continue
            for name in sorted(self.reads.names & vars(kind).keys() - module.__dict__.keys()):
                item = vars(kind)[name]
                label = f"{path}.{name}" if path else name
                if is_word(item) or isinstance(item, (type, types.BuiltinFunctionType)):
                    yield Place(path, None, (f".{name}",), label, plain=item)
                elif isinstance(item, torch.Tensor):
                    self.todo.append(Found(None, kind, (f".{name}",), label, item))
                elif isinstance(item, _CONTAINERS) or array_of(item) is not None:
                    self.todo.append(Found(path, None, (f".{name}",), label, item, name))

    def _drain(self) -> Iterator[Place]:
        while self.todo and len(self.seen) < _MOST:
            yield from self._look(self.todo.popleft())

    def _take(self, found: Found) -> Iterator[Place]:
        """A place if it is a number, to look into otherwise."""
        if is_constant(found.item):
            yield Place(*found[:4], plain=found.item)
        self.todo.append(found)

    def _look(self, found: Found) -> Iterator[Place]:
        item = found.item
        if isinstance(item, torch.Tensor) and id(item) in self.constants:
            yield Place(*found[:4], value=self.constants[id(item)])
        elif is_moving(item):
            self.moving.append(found)
        if isinstance(item, torch.Tensor) or is_moving(item):
            return
        if array_of(item) is not None:
            if found.named:
                yield Place(*found[:4], plain=Numbers.of(item))
            return
        if is_plain(item) or found.depth > _DEPTH or id(item) in self.seen or id(item) in self.own:
            return
        self.seen.add(id(item))
        self.keep.append(item)
        if isinstance(item, types.FunctionType):
            yield from self._function(found)
        elif isinstance(item, types.MethodType):
            self._below(found, (".__func__",), item.__func__)
            self._below(found, (".__self__",), item.__self__)
        elif isinstance(item, functools.partial):
            for step in ("func", "args", "keywords"):
                self._below(found, (f".{step}",), getattr(item, step))
        elif isinstance(item, nn.Module):
            self._module(found)
        elif isinstance(item, type) and issubclass(item, torch.autograd.Function):
            for step in DERIVATIVES:  # functions, as its forward
                self._below(found, (f".{step}",), getattr(item, step))
            yield from self._holder(found)
        else:
            yield from self._holder(found)

    def _below(
        self,
        found: Found,
        steps: tuple[str, ...],
        inner: Any,
        label: str = "",
        name: str = "",
        **more: Any,
    ) -> None:
        self.todo.append(
            found._replace(
                steps=(*found.steps, *steps), item=inner, label=label or found.label,
                name=name, depth=found.depth + 1, **more,
            )
        )  # fmt: skip

    def _function(self, found: Found) -> Iterator[Place]:
        """Closure, globals and defaults; the numbers there count without more ado."""
        function = found.item
        mine = is_users(function)
        for key, inner in function.__dict__.items():
            named = key in self.reads.names and (found.name, key) not in self.reads.written
            steps, label = (".__dict__", f"[{key!r}]"), f"{key} of {found.label}"
            if mine and named and is_constant(inner):
                yield Place(found.path, found.root, (*found.steps, *steps), label, plain=inner)
            self._below(found, steps, inner, label, key, named=named)
        for step, name, key, inner in of_function(function):
            label = f"{name} of {found.label}"
            if step.startswith(".__globals__"):
                self.globals.add((id(function.__globals__), key))
            if mine and is_constant(inner):
                yield Place(found.path, found.root, (*found.steps, step), label, plain=inner)
            called = isinstance(inner, types.FunctionType)
            if called and (found.calls >= _CALLS or not is_users(inner)):
                continue
            named = "efaults__" in step or key in self.reads.names
            calls = found.calls + called
            self._below(found, (step,), inner, label, key, calls=calls, named=named)

    def _module(self, found: Found) -> None:
        """Tensors of a module that is not part of the model."""
        for table in ("_parameters", "_buffers", "_modules"):
            for name, inner in getattr(found.item, table).items():
                step = f".{table}[{name!r}]"
                self._below(found, (step,), inner, f"{name} of {found.label}", name, named=False)
        for name, inner in found.item.__dict__.items():
            if isinstance(inner, torch.Tensor):
                step = f".__dict__[{name!r}]"
                self._below(found, (step,), inner, f"{name} of {found.label}", name, named=False)

    def _holder(self, found: Found) -> Iterator[Place]:
        """What a container, object, class or module holds, as far as the step looks it up."""
        item, reads = found.item, self.reads
        numbers, table = content(item), isinstance(item, dict)
        whole = table and (not found.name or found.name in reads.whole)
        if found.named:
            yield from self._guarded(found, numbers, whole)
        if numbers is not None and (whole or not table):
            return  # compared as one, and nothing is below
        computed = whole or isinstance(item, (list, tuple, deque, np.ndarray))
        computed = computed or (table and found.name in reads.dynamic)
        known = looked_up(item, found.name, reads)
        for entry in entries(item, reads):
            key = entry.key
            named = found.named and (computed or type(key) is int or key in known)
            label, steps = _label(found.label, entry.shown), (*found.steps, *entry.steps)
            if named and is_constant(entry.item) and (found.name, key) not in reads.written:
                yield Place(found.path, found.root, steps, label, plain=entry.item)
            if named or not isinstance(entry.item, (type, types.ModuleType)):
                name = "" if computed else str(key)
                self._below(found, entry.steps, entry.item, label, name, named=named)

    def _guarded(self, found: Found, numbers: Any, whole: bool) -> Iterator[Place]:
        """What is compared about a container as a whole; `numbers` if it holds nothing else."""
        item, reads, where = found.item, self.reads, found[:4]
        if numbers is not None and (whole or not isinstance(item, dict)):
            yield Place(*where, plain=Content(numbers))
        elif whole or isinstance(item, (list, deque)):
            yield Place(*where, plain=Length(len(item)))
        elif isinstance(item, np.ndarray):
            shape = (*found.steps, ".shape")
            yield Place(found.path, found.root, shape, f"{found.label}.shape", plain=item.shape)
        inside = item if isinstance(item, dict) else attributes(item)
        if inside is None or whole:
            return
        written = {key for holder, key in reads.written if holder == found.name}
        missing = reads.words - inside.keys() - written
        if inside is not item:
            missing &= looked_up(item, found.name, reads)
            missing = frozenset(word for word in missing if not hasattr(type(item), word))
            where = (*where[:2], (*where[2], ".__dict__"), where[3])
        if missing:
            yield Place(*where, plain=Absent(missing, len(inside)))


def _label(label: str, shown: str) -> str:
    """`cfg['w'] of the loss` for an entry of `cfg of the loss`."""
    if label.startswith(("the loss", "forward of ")):
        return f"{shown.removeprefix('.')} of {label}"
    head, of, rest = label.partition(" of ")
    return f"{head}{shown}{of}{rest}"
