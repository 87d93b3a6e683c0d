"""What a function does with the names that it looks up, read from its byte code.

`cfg['w']` reads one entry, `cfg[key]` any, `cfg.items()` all; `cfg` that is handed to another
function may be used in every way. What is not recognised counts as the last.
"""

from __future__ import annotations

import dis
import functools
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_SILENT = {
    "CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "MAKE_CELL", "NOP", "NOT_TAKEN", "PRECALL",
    "PUSH_NULL", "RESUME",
}  # fmt: skip
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME")
_WRITES = ("STORE_SUBSCR", "DELETE_SUBSCR", "COPY", "SWAP")
# methods of dicts and lists that use more than one entry
_ALL = {
    "items", "values", "keys", "copy", "pop", "popitem", "setdefault", "update", "index", "count",
    "__iter__", "__len__", "__contains__",
}  # fmt: skip
_ENVIRONMENT = {"environ", "getenv"}
_OPENERS = {"vars", "__dict__", "asdict", "astuple", "attrgetter"}
_FORMATS = ("BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BINARY_OP")


@dataclass
class Uses:
    """What pieces of code look up, and how.

    Attributes
    ----------
    names
        Names and words that may be attributes, globals or keys.
    words
        Those of them that are string constants.
    dynamic
        Names of containers whose keys are computed.
    whole
        Names of containers that are iterated, measured or handed on.
    opened
        Names in code that asks for attributes by computed names; `*` if it may be those of any
        object.
    computed
        Names in calls of `getattr` with computed names.
    read, written
        Pairs (name of the holder, key or attribute) that the code asks for, and sets.
    own
        Pairs (module, attribute): what methods ask their first argument for.
    users
        Names in code that is no library's.
    environment
        Variables of the environment that the code asks for.
    """

    names: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    dynamic: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    computed: set[str] = field(default_factory=set)
    read: set[tuple[str, Any]] = field(default_factory=set)
    written: set[tuple[str, Any]] = field(default_factory=set)
    own: set[tuple[str, str]] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    environment: set[str] = field(default_factory=set)

    def add(self, code: CodeType, module: str = "", *, library: bool = False) -> None:
        """Take in what `code` of a module does; functions written inside it are others.

        Attributes for which a `library` asks by computed names do not count.
        """
        lines = [i for i in dis.get_instructions(code) if i.opname not in _SILENT]
        words = set(_words(_constants(lines)))
        mentioned = {*code.co_names, *code.co_freevars, *words}
        self.names |= mentioned
        self.words |= words
        aliases: list[tuple[str, str]] = []
        dynamic: set[str] = set()
        whole: set[str] = set()
        if not library:
            self.users |= mentioned
        for place, name in _loaded(lines):
            kind, detail = _use(lines, place)
            if kind == "one" or (kind == "whole" and detail is not None):
                self.read.add((name, detail))
                if code.co_argcount and name == code.co_varnames[0]:
                    self.own.add((module, str(detail)))
            if kind == "alias":
                aliases.append((name, detail))
            elif kind == "written":
                self.written.add((name, detail))
            elif kind in ("dynamic", "whole"):
                (dynamic if kind == "dynamic" else whole).add(name)
        for name, local in reversed(aliases):  # cfg = self.cfg: what is done with cfg
            for used in (dynamic, whole):
                if local in used:
                    used.add(name)
            for pairs in (self.read, self.written):
                pairs |= {(name, key) for holder, key in pairs if holder == local}
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        local_names = {*code.co_varnames, *code.co_cellvars}.difference(parameters)
        self.dynamic |= dynamic - local_names | dynamic & mentioned
        self.whole |= whole - local_names | whole & mentioned
        if _ENVIRONMENT & mentioned:
            self.environment |= set(_variables(lines)) or words
        computed = set(_computed_names(lines))
        self.computed |= computed
        if not library:
            local_names.update(parameters[1:])
            if _OPENERS & mentioned or computed & local_names:
                self.opened.add("*")
            self.opened |= mentioned if computed else set()


@functools.lru_cache(maxsize=4096)
def globals_of(code: CodeType) -> frozenset[str]:
    """Globals that code names, not attributes of these names; functions inside it are others."""
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in _GLOBALS)


def _constants(lines: list[dis.Instruction]) -> tuple[Any, ...]:
    """Constants that are put on the stack, names of keyword arguments not among them."""
    return tuple(
        line.argval
        for line, after in itertools.zip_longest(lines, lines[1:])
        if line.opname in ("LOAD_CONST", "RETURN_CONST")
        and (after is None or after.opname != "CALL_KW")
    )


def _words(constants: tuple[Any, ...]) -> Iterator[str]:
    """Strings among constants that may be names."""
    for item in constants:
        if isinstance(item, str) and 0 < len(item) <= 60:
            yield item
        elif isinstance(item, (tuple, frozenset)):
            yield from _words(tuple(item))


def _variables(lines: list[dis.Instruction]) -> Iterator[str]:
    """Words that stand right behind `environ` or `getenv`."""
    for place, line in enumerate(lines):
        if line.argval in _ENVIRONMENT and line.opname.startswith("LOAD_"):
            for after in lines[place + 1 : place + 3]:
                if after.opname in _CONSTANTS and isinstance(after.argval, str):
                    yield after.argval
                    break


def _loaded(lines: list[dis.Instruction]) -> Iterator[tuple[int, str]]:
    """Places after which what a name stands for is on the stack, and the name."""
    for place, line in enumerate(lines):
        if line.opname in _LOADS or line.opname in _ATTRIBUTES:
            yield place, str(line.argval)
        elif line.opname.startswith("LOAD_FAST"):
            names = line.argval if isinstance(line.argval, tuple) else (line.argval,)
            yield place, str(names[-1])
            for name in names[:-1]:
                yield place - 1, str(name)  # followed by the load of the other
        elif line.opname in _CONSTANTS and isinstance(line.argval, str):
            after = lines[place + 1] if place + 1 < len(lines) else None
            if after is not None and _subscript(after):
                yield place + 1, line.argval


def _subscript(line: dis.Instruction) -> bool:
    return line.opname == "BINARY_SUBSCR" or (
        line.opname == "BINARY_OP" and line.argrepr.startswith("[")
    )


def _use(lines: list[dis.Instruction], place: int) -> tuple[str, Any]:
    """What is done with the object that is on the stack after `lines[place]`."""
    following = lines[place + 1 : place + 3]
    if not following:
        return "whole", None
    first, second = following[0], following[1] if len(following) > 1 else None
    if first.opname in _STORES:
        return "alias", str(first.argval)
    if first.opname == "CONTAINS_OP":
        return "one", None
    if first.opname in ("STORE_ATTR", "DELETE_ATTR"):
        return "written", str(first.argval)
    if first.opname in _ATTRIBUTES:
        if first.argval == "get":
            fixed = second is not None and second.opname in _CONSTANTS
            return ("one", second.argval) if second is not None and fixed else ("dynamic", None)
        return ("whole", None) if first.argval in _ALL else ("one", str(first.argval))
    if second is not None:
        if first.opname in _CONSTANTS and second.opname in _WRITES:
            return "written", first.argval
        if first.opname in _CONSTANTS and _subscript(second):
            return "one", first.argval
        if first.opname.startswith("LOAD_") and _subscript(second):
            return "dynamic", None
    if _subscript(first):  # two locals that were loaded at once
        return "dynamic", None
    if first.opname in _CONSTANTS and isinstance(first.argval, str):  # getattr(config, "name")
        return "whole", first.argval
    return "whole", None


def _computed_names(lines: list[dis.Instruction]) -> Iterator[str]:
    """What follows each `getattr` that is called with something else than a constant."""
    for place, line in enumerate(lines):
        if line.opname not in _LOADS or line.argval != "getattr":
            continue
        arguments = []
        for after in lines[place + 1 :]:
            if after.opname.startswith("CALL"):
                break
            arguments.append(after)
        plain = any(a.opname in _CONSTANTS and isinstance(a.argval, str) for a in arguments)
        if not plain or any(a.opname in _FORMATS for a in arguments):
            yield from (str(a.argval) for a in arguments if a.opname.startswith("LOAD_"))
