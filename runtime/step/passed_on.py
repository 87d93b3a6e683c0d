"""Gradients of inputs that have a history: autograd passes them on as they are.

For a leaf autograd copies a gradient that it cannot take over, in the leaf's layout, and a captured
step makes this copy itself. What an input was computed by gets the gradient in whatever layout it
has, expanded or transposed, and its kernels may round otherwise in another one. Backward then makes
a copy with the same strides instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...frontends.torch.gradients import own_copy

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ...frontends.torch.program import Call, Program, ValueMeta


def clone_as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` with its strides, in memory of its own."""
    if tensor.numel() == 0:
        return tensor.clone()
    whole = tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,)).clone()
    return whole.as_strided(tensor.shape, tensor.stride())


def copied_inputs(program: Program) -> tuple[int, ...]:
    """Gradients of inputs that the step makes a leaf's copies of."""
    return tuple(
        gradient
        for gradient, spec in enumerate(program.gradients)
        if program.inputs[spec.input].kind == "input" and own_copy(program, gradient) >= 0
    )


def passing_on(program: Program, gradients: Iterable[int]) -> dict[int, Call]:
    """Op -> what it does instead so that gradients are passed on as they are."""
    found = {}
    for gradient in gradients:
        op = own_copy(program, gradient)
        call = program.ops[op].call
        assert call is not None
        found[op] = replace(call, target=clone_as_it_is, args=call.args[:1], kwargs={})
    return found


def more_bytes(program: Program) -> int:
    """Bytes that the copies with gaps take beyond the leaves' copies."""
    total = 0
    for call in passing_on(program, copied_inputs(program)).values():
        meta: ValueMeta = program.value_meta[next(call.refs())]
        count = 1
        for size in meta.shape:
            count *= size
        total += max(0, extent(meta.shape, meta.stride) - count) * meta.dtype.itemsize
    return total


def extent(shape: Iterable[int], stride: Iterable[int]) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
