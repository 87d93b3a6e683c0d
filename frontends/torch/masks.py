"""Masks of dropout as one op each, in the memory that eager PyTorch takes for them.

Eager PyTorch fills new memory with zeros and ones and divides it in place. A trace shows that as
three tensors, of which the first has no contents: it says only how the mask is laid out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .kernels import BERNOULLI
from .program import Call, ValueRef

if TYPE_CHECKING:
    from .values import Line, Traced, Values


def bernoulli(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    p: float,
    divisor: float | None,
    dtype: torch.dtype,
    device: torch.device,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """A tensor of ones, each with probability `p`, and zeros; divided by `divisor` if any.

    It is a new one, or `out`, which looks like it.
    """
    if out is None:
        out = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    mask = out.bernoulli_(p)
    return mask if divisor is None else mask.div_(divisor)


def whole_masks(traced: Traced) -> list[Line]:
    """The lines with one call of `bernoulli` for each draw in place and what is done to it."""
    values = traced.values
    users: dict[int, Line] = {v: line for line in traced.lines for v in line.call.refs()}
    uses = Counter(v for line in traced.lines for v in line.reads)
    uses.update(v for v in traced.results if v is not None)
    gone: set[str] = set()
    lines = []
    for line in traced.lines:
        if line.name in gone:
            continue
        if line.call.target is not BERNOULLI:
            lines.append(line)
            continue
        (mask,) = line.writes
        divisor = None
        while divisor is None and uses[mask] == 1 and mask in users:
            user = users[mask]
            if user.backward is not line.backward or not _alike(values, mask, user):
                break
            if not _copies(user.call, mask):
                divisor = _divisor(user.call, mask)
                if divisor is None:
                    break
            gone.add(user.name)
            (mask,) = user.writes
        lines.append(replace(line, call=_draw(line.call, values, mask, divisor)))
    return lines


def _draw(call: Call, values: Values, mask: int, divisor: float | None) -> Call:
    meta = values.meta[mask]
    args = (meta.shape, meta.stride, call.args[1], divisor, meta.dtype, meta.device)
    return Call(bernoulli, args, {}, (mask,), unpack=False)


def _alike(values: Values, mask: int, user: Line) -> bool:
    """Whether a call makes one new tensor that looks like the mask."""
    if user.view or len(user.writes) != 1:
        return False
    old, new = values.meta[mask], values.meta[user.writes[0]]
    return (old.shape, old.stride, old.dtype) == (new.shape, new.stride, new.dtype)


def _copies(call: Call, mask: int) -> bool:
    """Whether a call is the mask in the place of another tensor."""
    copy = call.target is torch.ops.aten.copy.default
    return copy and call.args[1:2] == (ValueRef(mask),) and call.args[0] != ValueRef(mask)


def _divisor(call: Call, mask: int) -> float | None:
    """The number by which a call divides the mask; None if it does something else."""
    aten = torch.ops.aten
    if call.target not in (aten.div.Scalar, aten.div.Tensor) or call.args[0] != ValueRef(mask):
        return None
    by = call.args[1]
    return by if isinstance(by, (int, float)) else None
