"""Whether what a step changes in place shares memory with what else it is given.

A program was captured with tensors apart from each other: it reads some of them before it writes
others. The caller may give one tensor twice, two parts of one, or a buffer of the model; and may
put another tensor in the place of a buffer, which is a part of a parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..generate.codegen import _written
from ..step.passed_on import extent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...frontends.torch.program import Program


class Overlaps:
    """Looks for shared memory among the inputs of a program, tangents not counted."""

    def __init__(self, program: Program) -> None:
        places = [i for i, spec in enumerate(program.inputs) if spec.kind != "tangent"]
        changed = {place for place, i in enumerate(places) if i in _written(program)}
        leaves = [place for place, i in enumerate(places) if program.inputs[i].kind == "input"]
        others = set(range(len(places))).difference(leaves)
        self._pairs = [
            (leaf, [*leaves, *others] if leaf in changed else sorted(others & changed))
            for leaf in leaves
        ]
        self._pairs = [(leaf, beside) for leaf, beside in self._pairs if beside]
        self._changed = sorted(others & changed)
        self._own = sorted(others) if self._changed else []
        # where tensors of the module lay when they were last found to be apart
        self._apart: list[int] = []
        self.any = bool(self._pairs or self._own)

    def first(self, tensors: Sequence[torch.Tensor | None]) -> tuple[int, int] | None:
        """Places of what shares memory, one of them changed by the step; None if nothing does.

        An argument shares it with whatever lies in its storage. Tensors of the module are looked at
        again where one has moved: the guards have seen that shapes and strides are as they were.

        Parameters
        ----------
        tensors
            The inputs of a call; None where one is not known.
        """
        for leaf, beside in self._pairs:
            tensor = tensors[leaf]
            if tensor is None or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            end = start + storage.nbytes()
            for place in beside:
                other = tensors[place]
                if other is not None and start <= other.data_ptr() < end and place != leaf:
                    return leaf, place
        if self._own:
            own = [tensors[place] for place in self._own]
            where = [0 if tensor is None else tensor.data_ptr() for tensor in own]
            if where != self._apart:
                found = self._of_module(tensors)
                if found is not None:
                    return found
                self._apart = where
        return None

    def _of_module(self, tensors: Sequence[torch.Tensor | None]) -> tuple[int, int] | None:
        """Places of a tensor of the module that the step changes, and of one that it touches."""
        spans = []
        for place in self._own:
            tensor = tensors[place]
            if tensor is not None and tensor.layout is torch.strided and tensor.numel():
                start = tensor.data_ptr()
                size = extent(tensor.shape, tensor.stride()) * tensor.element_size()
                spans.append((start, start + size, place))
        spans.sort()
        changed = set(self._changed)
        for number, (_, end, one) in enumerate(spans):
            for start, _, other in spans[number + 1 :]:
                if start >= end:
                    break
                if one in changed or other in changed:
                    return (one, other) if one in changed else (other, one)
        return None
