"""Calls with wrong arguments are input errors of one line that names the right ones."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from .errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def checked_arguments(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """The function, with an `InputError` instead of a bare `TypeError` for a call that is none.

    Planning alone calls its budget `budget`, and what stands in a training script `memory_budget`:
    easily mixed up, so that the message says which name is meant.
    """
    signature = inspect.signature(function)
    kinds = inspect.Parameter
    parameters = signature.parameters.values()
    named = [
        p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    takes_any = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    name = function.__name__

    @wraps(function)
    def checked(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        for unknown in () if takes_any else kwargs.keys() - set(named):
            near = get_close_matches(unknown, named, n=1)
            hint = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(named)}"
            raise InputError(f"{name} has no argument {unknown}=: {hint}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            needed = [p.name for p in parameters if p.default is kinds.empty and p.name in named]
            raise InputError(f"{name}: {error}; it needs {', '.join(needed)}") from None
        return function(*args, **kwargs)

    return checked
