"""Steps inside one autocast context: where autocast would share casts of weights between them.

Autocast casts a weight once and keeps the result until its outermost context ends. Within one call
the captured step does the same. A second call in the same context would use the casts of the first:
stale ones after an optimizer step, and one backward through both would add up gradients in the
narrow type. Replayed steps cast anew, so both cases are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...frontends.torch.program import ValueRef
from ...solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...frontends.torch.program import Program

_ADVICE = "open an autocast context for each forward, or one with cache_enabled=False"


def cast_parameters(program: Program) -> tuple[int, ...]:
    """Places among the inputs (tangents not counted) of parameters whose casts autocast keeps."""
    if not program.autocast or not program.autocast_cache:
        return ()
    cast = {
        argument.index
        for op in program.ops
        if op.call is not None and str(op.call.target) == "aten._to_copy.default"
        for argument in op.call.args
        if isinstance(argument, ValueRef)
    }
    kept = [spec for spec in program.inputs if spec.kind != "tangent"]
    return tuple(
        place
        for place, spec in enumerate(kept)
        if spec.kind == "param" and spec.requires_grad and spec.value in cast
    )


class CastContext:
    """One autocast context, from the first step of a module in it on."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark
        self._versions: dict[int, int] = {}
        self._task = -1

    def forward(self, inputs: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        """A forward begins.

        Raises
        ------
        ReplayError
            If a weight was changed since its first cast here.
        """
        for place in places:
            weight = inputs[place]
            if self._versions.setdefault(id(weight), weight._version) != weight._version:
                raise ReplayError(
                    "parameters were changed since an earlier call in the same autocast context, "
                    f"where plain PyTorch would use its old casts of them: {_ADVICE}"
                )

    def backward(self) -> None:
        """A backward begins.

        Raises
        ------
        ReplayError
            If it is part of the same backward as another one of this context.
        """
        task = torch._C._current_graph_task_id()
        if task == self._task:
            raise ReplayError(
                "one backward through two calls in the same autocast context, where plain PyTorch "
                f"would add up gradients in the narrow type: {_ADVICE}"
            )
        self._task = task


_empty: dict[str, torch.Tensor] = {}


def current(last: CastContext | None, kind: str) -> CastContext:
    """The context that this call is in: `last`, or a new one.

    An empty leaf is cast here as weights are. Only in the same context its cast, which is a node of
    the autograd graph, is the same one again; that takes no memory.
    """
    if kind not in _empty:
        _empty[kind] = torch.empty(0, 0, device=kind, requires_grad=True)
    made = torch.mm(_empty[kind], _empty[kind])
    assert made.grad_fn is not None
    mark = made.grad_fn.next_functions[0][0]
    return last if last is not None and last.mark is mark else CastContext(mark)
