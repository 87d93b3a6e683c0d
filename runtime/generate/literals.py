"""Writes the arguments of a call as Python source.

What has no exact source text (data types, devices, infinities, callables) is bound to a name in the
namespace of the generated code.
"""

from __future__ import annotations

import keyword
import math
import re
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_WORD = re.compile(r"\W+")


class Namespace:
    """Names of the objects that generated code refers to; equal objects share a name."""

    def __init__(self) -> None:
        self.globals: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def bind(self, value: Any, hint: str) -> str:
        """Name under which the generated code finds `value`; `hint` is the wish."""
        key = _key(value)
        if key in self._names:
            return self._names[key]
        stem = _WORD.sub("_", hint).lstrip("_") or "k"
        if stem[0].isdigit() or keyword.iskeyword(stem) or re.fullmatch(r"v\d+|_", stem):
            stem = f"k_{stem}"
        name, count = stem, 1
        while name in self.globals:
            count += 1
            name = f"{stem}_{count}"
        self.globals[name] = value
        self._names[key] = name
        return name


def write_argument(
    value: Any, namespace: Namespace, value_name: Callable[[Any], str | None]
) -> str:
    """Source text of one argument.

    Parameters
    ----------
    value
        A nested literal with placeholders in it.
    namespace
        Takes what cannot be written as text.
    value_name
        Gives the name that stands for a placeholder, None for anything else.
    """
    name = value_name(value)
    if name is not None:
        return name
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list, torch.Size):
        items = ", ".join(write_argument(item, namespace, value_name) for item in value)
        if type(value) is list:
            return f"[{items}]"
        return f"({items},)" if len(value) == 1 else f"({items})"
    if type(value) is dict:
        pairs = (
            f"{write_argument(key, namespace, value_name)}: "
            f"{write_argument(item, namespace, value_name)}"
            for key, item in value.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if type(value) is slice:
        parts = (value.start, value.stop, value.step)
        return f"slice({', '.join(write_argument(p, namespace, value_name) for p in parts)})"
    if value is None or value is ... or type(value) in (bool, int, str):
        return repr(value)
    if type(value) is float and math.isfinite(value):
        return repr(value)
    return namespace.bind(value, _hint(value))


def _hint(value: Any) -> str:
    """A readable name for a bound constant."""
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "minus_inf")
    return getattr(value, "__name__", type(value).__name__)


def _key(value: Any) -> Any:
    """Two objects with the same key may share a name."""
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return (type(value), str(value))
    return id(value)
