"""Turns generated source into functions whose tracebacks show the generated lines."""

from __future__ import annotations

import itertools
import linecache
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_count = itertools.count()


def build_functions(
    source: str, namespace: dict[str, Any], names: tuple[str, ...], title: str
) -> tuple[Callable[..., Any], ...]:
    """Compile `source` and return the functions `names` that it defines.

    Parameters
    ----------
    source
        Definitions of functions.
    namespace
        Objects that the source refers to; not changed.
    names
        Functions to return.
    title
        Shown as the file name in tracebacks.
    """
    filename = f"<lowtide {title} #{next(_count)}>"
    scope = dict(namespace)
    exec(compile(source, filename, "exec"), scope)
    lines = source.splitlines(keepends=True)
    # A None time tells `linecache.checkcache` that there is no file to compare with.
    linecache.cache[filename] = (len(source), None, lines, filename)
    functions = tuple(scope[name] for name in names)
    weakref.finalize(functions[0], linecache.cache.pop, filename, None)
    return functions
