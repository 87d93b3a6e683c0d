"""Gradients get a storage of their own, as AccumulateGrad would give them.

The engine takes a gradient over without a copy only if nobody else holds its memory and its strides
are the parameter's; otherwise it clones. The clone is made an op here, so that its bytes are seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .program import Call, ValueMeta, ValueRef
from .values import Line, Values, extent

if TYPE_CHECKING:
    from .assemble import Wiring
    from .program import Program

_COPY = "grad_clone."


def own_gradients(lines: list[Line], values: Values, wiring: Wiring) -> list[Line]:
    """Add a clone for every gradient that the engine could not take over.

    Returns
    -------
    The lines with the clones, each right after the line that makes its gradient; the clones take
    the gradients' place in `wiring`.
    """
    made_late = {values.storage[v] for line in lines if line.backward for v in line.writes}
    outside = (*wiring.outputs.values(), *wiring.tangents.values(), *wiring.sources.values())
    taken = {values.storage[v] for v in outside}
    taken |= {values.storage[v] for v, _ in wiring.constants}
    clones: dict[str, list[Line]] = {}
    maker = {v: line.name for line in lines for v in line.writes}
    for index, value in list(wiring.gradients.items()):
        storage = values.storage[value]
        meta, like = values.meta[value], values.meta[wiring.sources[index]]
        own = storage not in taken and storage in made_late
        whole = extent(meta) * meta.dtype.itemsize == values.nbytes[storage]
        if own and whole and meta.storage_offset == 0 and follows_layout(meta, like):
            taken.add(storage)
            continue
        clone = _clone(values, value, like, f"{_COPY}{index}")
        wiring.gradients[index] = clone.writes[0]
        clones.setdefault(maker.get(value, ""), []).append(clone)
    placed: list[Line] = []
    first = True
    for line in lines:
        if line.backward and first:
            placed += clones.pop("", [])
            first = False
        placed.append(line)
        if line.backward:
            placed += clones.pop(line.name, [])
    for rest in clones.values():  # of values made before the boundary
        placed += rest
    return placed


def own_copy(program: Program, gradient: int) -> int:
    """The op that makes AccumulateGrad's copy of a gradient; -1 if the step has none."""
    value = program.gradients[gradient].value
    for index, op in enumerate(program.ops):
        if value is not None and value in op.writes:
            return index if program.graph.ops[index].name.startswith(_COPY) else -1
    return -1


def follows_layout(meta: ValueMeta, like: ValueMeta) -> bool:
    """PyTorch's gradient layout contract: the parameter's strides, or contiguous ones."""
    if is_dense(like):
        return all(
            size == 1 or a == b
            for size, a, b in zip(meta.shape, meta.stride, like.stride, strict=True)
        )
    expected = 1
    for size, stride in zip(reversed(meta.shape), reversed(meta.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def is_dense(meta: ValueMeta) -> bool:
    """Whether a tensor fills its extent without overlap."""
    count = 1
    for size in meta.shape:
        count *= size
    pairs = sorted((s, n) for n, s in zip(meta.shape, meta.stride, strict=True) if n != 1)
    expected = 1
    for stride, size in pairs:
        if stride != expected:
            return False
        expected *= size
    return count == 0 or extent(meta) == count


def clone_strided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A copy of `tensor` with the given strides (elements)."""
    return torch.empty_strided(
        tensor.shape, stride, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def _clone(values: Values, value: int, like: ValueMeta, name: str) -> Line:
    """A clone of a value with the strides that the gradient of `like` has."""
    meta = values.meta[value]
    plain = _contiguous(meta.shape)
    stride = like.stride if is_dense(like) else plain
    made = values.new(replace(meta, stride=stride, storage_offset=0), name)
    if stride == plain:
        keywords = {"memory_format": torch.contiguous_format}
        call = Call(torch.ops.aten.clone.default, (ValueRef(value),), keywords, (made,), False)
    else:
        call = Call(clone_strided, (ValueRef(value), stride), {}, (made,), False)
    return Line(name, call, "", backward=True, view=False)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
