"""Captured steps of a few calls, made by hand, to test cost models without a capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from lowtide.frontends.torch.captured import Captured
from lowtide.frontends.torch.interface import InputSpec
from lowtide.frontends.torch.program import Call, Kind, Program, ProgramOp, ValueMeta, ValueRef
from lowtide.solver.graph import Graph, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def meta_of(tensor: torch.Tensor) -> ValueMeta:
    """What a tensor looks like."""
    return ValueMeta(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.device,
        tensor.untyped_storage().nbytes() // max(1, tensor.dtype.itemsize),
    )


class Step:
    """Builds a captured step: `add` returns the values that a call makes."""

    def __init__(self) -> None:
        self.metas: list[ValueMeta] = []
        self.examples: list[torch.Tensor] = []
        self.inputs: list[InputSpec] = []
        self.values: list[torch.Tensor] = []
        self.calls: list[Call] = []

    def give(self, tensor: torch.Tensor) -> ValueRef:
        """An input of the step."""
        position = len(self.examples)
        self.examples.append(tensor)
        self.inputs.append(InputSpec("input", len(self.values), position=position))
        return self._value(tensor)

    def add(self, target: Any, *args: Any, used: Sequence[int] | None = None) -> list[ValueRef]:
        """Append a call; `used` are the elements of its output that the graph knows."""
        real = [self.values[a.index] if isinstance(a, ValueRef) else a for a in args]
        result = target(*real)
        unpack = isinstance(result, (tuple, list))
        elements = list(result) if unpack else [result]
        refs: list[ValueRef | None] = []
        for place, element in enumerate(elements):
            known = isinstance(element, torch.Tensor) and (used is None or place in used)
            refs.append(self._value(element) if known else None)
        outputs = tuple(ref.index if ref is not None else None for ref in refs)
        self.calls.append(Call(target, args, {}, outputs, unpack))
        return [ref for ref in refs if ref is not None]

    def _value(self, tensor: torch.Tensor) -> ValueRef:
        self.values.append(tensor)
        self.metas.append(meta_of(tensor))
        return ValueRef(len(self.values) - 1)

    def captured(self) -> Captured:
        """The step; sizes in its graph are those of dense tensors, times are zero."""
        tensors = tuple(
            Tensor(f"t{i}", value.numel() * value.itemsize) for i, value in enumerate(self.values)
        )
        ops = []
        program_ops = []
        for index, call in enumerate(self.calls):
            reads = tuple(dict.fromkeys(call.refs()))
            writes = tuple(v for v in call.outputs if v is not None)
            ops.append(Op(f"op{index}", str(call.target), 0, reads, writes))
            program_ops.append(ProgramOp(Kind.CALL, call, reads, writes))
        spec = tree_flatten(((), {}))[1]
        program = Program(
            graph=Graph("by hand", tuple(ops), tensors),
            ops=tuple(program_ops),
            value_tensor=tuple(range(len(self.values))),
            value_meta=tuple(self.metas),
            views={},
            inputs=tuple(self.inputs),
            outputs=(),
            out_spec=spec,
            gradients=(),
            in_spec=spec,
            guards=(),
            training={},
            shared=(),
        )
        example = tuple(t if not t.is_floating_point() else t.to("meta") for t in self.examples)
        return Captured(program, nn.Module(), None, False, "tuple", example, torch.device("cpu"))
