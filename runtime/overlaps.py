"""Whether what a step changes in place shares memory with what else it is given.

A program was captured with tensors apart from each other: it reads some of them before it writes
others. The caller may give one tensor twice, two parts of one, or a buffer of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .codegen import _written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..frontends.torch.program import Program


class Overlaps:
    """Looks for shared memory among the inputs of a program, tangents not counted."""

    def __init__(self, program: Program) -> None:
        places = [i for i, spec in enumerate(program.inputs) if spec.kind != "tangent"]
        changed = {place for place, i in enumerate(places) if i in _written(program)}
        leaves = [place for place, i in enumerate(places) if program.inputs[i].kind == "input"]
        others = set(range(len(places))).difference(leaves)
        # Tensors of the module are apart from each other, as long as they are who they were.
        self._pairs = [
            (leaf, [*leaves, *others] if leaf in changed else sorted(others & changed))
            for leaf in leaves
        ]
        self._pairs = [(leaf, beside) for leaf, beside in self._pairs if beside]
        self.any = bool(self._pairs)

    def first(self, tensors: Sequence[torch.Tensor | None]) -> tuple[int, int] | None:
        """Places of an argument and of what lies in its storage, if there are any.

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
        return None
