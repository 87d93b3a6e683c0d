"""Arrays outside of PyTorch that a step reads: NumPy's, and what else is memory full of numbers.

They have no versions, so that their contents are compared before each step: half a microsecond for
a few numbers, 25 for a MiB, 8 ms for 100 MiB (measured on one slow core).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

_SMALL = 1 << 16  # bytes up to which a copy is the fastest way to compare
_SHOWN = 8  # numbers that are written out in a message


def array_of(item: Any) -> np.ndarray[Any, Any] | None:
    """What is an array of numbers, as NumPy's; None for all else, arrays of objects among it."""
    if isinstance(item, np.ndarray):
        return None if item.dtype.hasobject else item
    if isinstance(item, (bytearray, array)):
        return np.frombuffer(item, dtype=getattr(item, "typecode", "B")) if item else np.empty(0)
    return None


@dataclass(frozen=True, repr=False)
class Numbers:
    """What an array held.

    Attributes
    ----------
    kind, dtype, shape
        Its class, and how NumPy sees it.
    data
        Its contents in C order; those of a mask behind them.
    """

    kind: type
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, item: Any) -> Numbers | None:
        """A copy of an array; None for what is none."""
        found = array_of(item)
        if found is None:
            return None
        return cls(type(item), found.dtype, found.shape, _bytes(found))

    def same(self, item: Any) -> bool:
        """Whether an array holds the same numbers, bit for bit, in the same shape and type."""
        if type(item) is not self.kind:
            return False
        found = array_of(item)
        if found is None or found.shape != self.shape or found.dtype != self.dtype:
            return False
        plain = self.kind is np.ndarray and found.flags.c_contiguous
        if len(self.data) <= _SMALL or not plain or len(self.data) % 8:
            return _bytes(found) == self.data
        now = found.reshape(-1).view(np.uint64)
        return bool((now == np.frombuffer(self.data, np.uint64)).all())

    def difference(self, item: Any) -> str:
        """What another one is, or how it was changed, in words that end in `was`."""
        found = array_of(item)
        if found is None or type(item) is not self.kind:
            return f"{_short(item)} and was {self}"
        was = np.frombuffer(self.data, self.dtype, count=int(np.prod(self.shape)))
        if (found.shape, found.dtype) != (self.shape, self.dtype):
            return f"{_look(found.dtype, found.shape)} and was {_look(self.dtype, self.shape)}"
        if found.size <= _SHOWN:
            return f"{np.ravel(found).tolist()} and was {was.tolist()}"
        now = np.frombuffer(np.ascontiguousarray(found).tobytes(), np.uint8).reshape(was.size, -1)
        before = np.frombuffer(self.data, np.uint8, count=now.size).reshape(was.size, -1)
        changed = int((now != before).any(axis=1).sum())
        return f"another array in {changed} of {was.size} numbers than it was"

    def __repr__(self) -> str:
        """Its class and looks."""
        return f"{self.kind.__name__} of {_look(self.dtype, self.shape)}"


def _bytes(found: np.ndarray[Any, Any]) -> bytes:
    if isinstance(found, np.ma.MaskedArray):
        return bytes(found.data.tobytes() + np.ma.getmaskarray(found).tobytes())
    return found.tobytes()


def _look(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"


def _short(item: Any) -> str:
    return " ".join(repr(item).split())[:60]
