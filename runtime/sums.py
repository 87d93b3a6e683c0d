"""Tells of weights whose gradients are added up in another order than in plain PyTorch.

A weight that the model uses more than once gets one gradient from a replayed step: the sum. What it
got before in the same backward, from a loss outside of the module or from a later call, autograd
adds to that sum; plain PyTorch would have added the gradients of the uses to it one by one. What
comes after the sum is added as ever.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..frontends.torch.program import Program

_log = logging.getLogger(__name__)
_ADD = torch.ops.aten.add.Tensor
_COPIES = ("aten.clone.default", "lowtide.clone_strided")


class Sums:
    """Follows the gradients of some weights to where autograd accumulates them.

    Parameters
    ----------
    stages
        For each stage: place and name of the gradients that are sums.
    """

    def __init__(self, stages: Sequence[Sequence[tuple[int, str]]]) -> None:
        self.stages = stages
        self._handles: dict[str, Any] = {}

    def follow(
        self, stage: int, gradients: Sequence[torch.Tensor | None], edges: Sequence[tuple[Any, int]]
    ) -> None:
        """Look at gradients of a stage once more when they are accumulated; `edges` end in them."""
        task = torch._C._current_graph_task_id()
        edges = edges[len(edges) - len(gradients) :]
        for place, name in self.stages[stage]:
            gradient, node = gradients[place], edges[place][0]
            if name in self._handles:
                self._handles.pop(name).remove()
            if gradient is not None and getattr(node, "variable", None) is not None:
                check = partial(self._check, name, task, gradient.data_ptr())
                self._handles[name] = node.register_prehook(check)

    def _check(self, name: str, task: int, address: int, gradients: Any) -> None:
        """Tell once if something came before the sum: then it was added to that, elsewhere."""
        (found,) = gradients
        if task != torch._C._current_graph_task_id() or found is None:
            return
        if found.data_ptr() != address and self.stages:
            self.stages = tuple(() for _ in self.stages)
            _log.warning(
                "parameter %s is used more than once by the model, and had got a gradient from "
                "elsewhere before: plain PyTorch adds them up in another order, so that its last "
                "bits may differ. Give the whole loss as loss_fn, or call the model once for all",
                name,
            )


def sums_of(program: Program, stages: Sequence[Sequence[int]]) -> Sums | None:
    """What to follow in a step whose stages give these gradients; None if nothing."""
    made_by = {value: op.call for op in program.ops if op.call for value in op.writes}

    def added(value: int | None) -> bool:
        while value is not None:
            view, call = program.views.get(value), made_by.get(value)
            if view is not None:
                value = next(view.refs())
            elif call is not None and call.name in _COPIES:
                value = next(call.refs())
            else:
                return call is not None and call.target is _ADD
        return False

    found = []
    for stage in stages:
        here = []
        for place, gradient in enumerate(stage):
            spec = program.gradients[gradient]
            source = program.inputs[spec.input]
            if source.kind == "param" and added(spec.value):
                here.append((place, source.fqn))
        found.append(here)
    return Sums(found) if any(found) else None
