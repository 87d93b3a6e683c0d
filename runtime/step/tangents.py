"""Gradients of outputs that arrive in another layout than the captured one.

The caller's loss decides: `out.mean()` sends one number, expanded. Kernels may round otherwise for
it than for a dense copy, so operators get it as plain PyTorch's would, wherever all that they and
their views make of it looks as captured. Elsewhere a dense copy stands for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ...frontends.torch.program import ValueRef

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...frontends.torch.program import Call, Program


_log = logging.getLogger(__name__)

# The result looks like the input of forward, however the gradient looks; `meta` kernels differ.
_BY_INPUT = frozenset(("aten.native_batch_norm_backward", "aten.native_layer_norm_backward"))
# Plain PyTorch, too, makes a dense copy: before it calls these, from 2.14 on inside of them.
_DENSE = frozenset(("aten.native_group_norm_backward",))


class Tangent:
    """The gradient of one output, as the captured program expects it."""

    __slots__ = ("_allowed", "_layouts", "device", "dtype", "output", "shape", "stride")

    def __init__(
        self,
        output: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        allowed: Callable[[tuple[int, ...]], bool] = lambda _: False,
    ) -> None:
        self.output = output
        self._allowed = allowed
        self._layouts: dict[tuple[int, ...], bool] = {}
        self.shape, self.stride, self.dtype, self.device = shape, stride, dtype, device

    def arrived(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """The gradient of the output, if there is one."""
        return gradients[self.output] if self.output >= 0 else None

    def zeros(self) -> torch.Tensor:
        """What stands for a gradient that did not arrive."""
        new = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return new.zero_()

    def fitted(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient that arrived, in the captured layout or one that will do."""
        found = gradient.stride()
        if found == self.stride or gradient.numel() <= 1:
            return gradient
        if found not in self._layouts:
            self._layouts[found] = self._allowed(found)
        if self._layouts[found]:
            return gradient
        new = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return new.copy_(gradient)


def taken_as_it_is(program: Program, value: int, stride: tuple[int, ...]) -> bool:
    """Whether the tangent `value` may come with `stride`: operators on it make what they did.

    The first operators run on `meta` tensors, which takes about a millisecond, once a layout. One
    log line tells of a layout with which plain PyTorch would go on in another one than captured.
    """
    leaving = (spec.value for spec in program.gradients if spec.value is not None)
    if any(_source(program, gradient) == value for gradient in leaving):
        return False  # it leaves as a gradient, whose layout is the captured one
    known: dict[int, torch.Tensor] = {}

    def of(ref: int) -> torch.Tensor:
        if ref not in known:
            view = program.views.get(ref)
            if view is not None and _source(program, ref) == value:
                made = _run(view, of)
                known.update(
                    (v, out)
                    for v, out in zip(view.outputs, _all(made), strict=False)
                    if v is not None
                )
            else:
                known[ref] = _like(program, ref, stride if ref == value else None)
        return known[ref]

    try:
        for op in program.ops:
            if op.call is None or all(_source(program, ref) != value for ref in op.call.refs()):
                continue
            name = str(getattr(op.call.target, "overloadpacket", op.call.target))
            if name in _DENSE:
                return False
            made = _all(_run(op.call, of))
            if name in _BY_INPUT:
                continue
            for output, found in zip(op.call.outputs, made, strict=False):
                if output is None or not isinstance(found, torch.Tensor):
                    continue
                meta = program.value_meta[output]
                if (tuple(found.shape), found.stride()) != (tuple(meta.shape), tuple(meta.stride)):
                    _log.warning(
                        "the gradient of an output arrives with strides %s and is copied: the last "
                        "bits of gradients may differ from plain PyTorch. Give the whole loss as "
                        "loss_fn",
                        stride,
                    )
                    return False
    except (RuntimeError, NotImplementedError):
        return False  # a view that is none of an expanded tensor, or no kernel to ask
    return True


def _source(program: Program, value: int) -> int:
    """The value that a view is, in the end, a view of."""
    while value in program.views:
        value = next(program.views[value].refs())
    return value


def _like(program: Program, value: int, stride: tuple[int, ...] | None) -> torch.Tensor:
    meta = program.value_meta[value]
    return torch.empty_strided(meta.shape, stride or meta.stride, dtype=meta.dtype, device="meta")


def _all(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def _run(call: Call, of: Any) -> Any:
    """Run a call on `meta` tensors."""

    def fill(argument: Any) -> Any:
        if isinstance(argument, ValueRef):
            return of(argument.index)
        if isinstance(argument, torch.device):
            return torch.device("meta")
        return argument

    args, kwargs = pytree.tree_map(
        fill, (call.args, call.kwargs), is_leaf=lambda item: isinstance(item, ValueRef)
    )
    return call.target(*args, **kwargs)
