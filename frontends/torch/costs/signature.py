"""Signatures: two calls with the same signature cost the same on one machine.

A signature names the operator, what each tensor argument looks like (type, shape, strides, offset
within a cache line, device, and which arguments are one and the same value) and every literal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from ..program import ValueRef

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..program import Call, ValueMeta

_LINE_BYTES = 64
# These copy the whole storage of their first argument, not only what it shows of it.
_WHOLE_STORAGE = frozenset(
    ("copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")
)


@dataclass(frozen=True)
class Signature:
    """What a call's cost depends on.

    Attributes
    ----------
    text
        All of it, readable.
    portable
        False if the text does not mean the same in another process (somebody's Python callable).
    """

    text: str
    portable: bool

    @cached_property
    def key(self) -> str:
        """SHA-256 of the text, shortened to 128 bits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


def signature(call: Call, metas: Sequence[ValueMeta]) -> Signature:
    """Signature of `call`, whose values look like `metas`."""
    name, portable = _target_name(call.target)
    writer = _Writer(metas, copies_storage(call))
    parts = [writer.text(argument) for argument in call.args]
    parts += [f"{key}={writer.text(value)}" for key, value in sorted(call.kwargs.items())]
    return Signature(f"{name}({', '.join(parts)})", portable and writer.portable)


def copies_storage(call: Call) -> bool:
    """Whether the cost of `call` depends on the storages behind its arguments."""
    target = call.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target._schema.name.removeprefix("aten::") in _WHOLE_STORAGE


def alignment(meta: ValueMeta) -> int:
    """Elements by which the first element of a value is off a 64-byte boundary."""
    return meta.storage_offset % max(1, _LINE_BYTES // meta.dtype.itemsize)


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a data type without the module: `float32`."""
    return str(dtype).removeprefix("torch.")


def _target_name(target: Callable[..., Any]) -> tuple[str, bool]:
    if isinstance(target, torch._ops.OpOverload):
        return str(target), True
    module, name = getattr(target, "__module__", "?"), getattr(target, "__qualname__", repr(target))
    if str(module).startswith(__package__.partition(".")[0] + "."):
        return f"{module}.{name}", True
    return f"{module}.{name}#{id(target)}", False


class _Writer:
    """Writes arguments as text, numbering values in the order in which they are met."""

    def __init__(self, metas: Sequence[ValueMeta], storages: bool) -> None:
        self.metas = metas
        self.storages = storages
        self.numbers: dict[int, int] = {}
        self.portable = True

    def text(self, argument: Any) -> str:
        if isinstance(argument, ValueRef):
            return self._value(argument.index)
        if isinstance(argument, (tuple, list)):
            return f"[{', '.join(self.text(item) for item in argument)}]"
        if isinstance(argument, dict):
            items = (f"{key!r}: {self.text(value)}" for key, value in argument.items())
            return f"{{{', '.join(items)}}}"
        if isinstance(argument, slice):
            return f"slice{self.text((argument.start, argument.stop, argument.step))}"
        if argument is None or isinstance(argument, (bool, int, float, complex, str)):
            # repr tells 1, 1.0 and True apart, and writes inf and nan.
            return repr(argument)
        if isinstance(argument, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return str(argument)
        self.portable = False
        return f"{type(argument).__qualname__}#{id(argument)}"

    def _value(self, index: int) -> str:
        number = self.numbers.setdefault(index, len(self.numbers))
        meta = self.metas[index]
        shape, stride = list(meta.shape), list(meta.stride)
        device = meta.device.type
        of = f" of {meta.storage}" if self.storages else ""
        return f"%{number}:{dtype_name(meta.dtype)}{shape}{stride}+{alignment(meta)}{of}@{device}"
