"""The step of a later micro-batch: gradients of earlier ones are there, and new ones are added.

Autograd then adds each new gradient to the one that its parameter has and lets go of it, so new
gradients need not stay to the end. They leave backward in groups, its stages, and only when a stage
ends is their memory free. Where stages end is part of the graph: an op `deliver.N` reads the
gradients that stage N hands over, and the gradients to which they are added, which are resident.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ...solver.errors import InputError
from ...solver.graph import DELIVER, Op, Tensor
from .costs.machine import PRESETS
from .costs.roofline import op_time
from .program import Kind, Program, ProgramOp
from .stages import stage_count, stage_ends

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...solver.graph import Graph

HELD = ".held"  # what the name of a gradient that is there already ends with


def accumulating(program: Program, stages: int | None = None) -> Program:
    """The same step on gradients that are there already.

    Parameters
    ----------
    program
        A step that begins without gradients.
    stages
        Largest number of stages; None lets gradient bytes and a nominal machine decide, so that
        the graph does not depend on what was measured.
    """
    if is_accumulating(program.graph):
        raise InputError("this step is already one that adds to gradients")
    stage_of, ends = _stages(program, stages)
    if not ends:
        return program
    return _Weaver(program, stage_of, ends).woven()


def is_accumulating(graph: Graph) -> bool:
    """Whether the graph is of a step that adds to gradients which are there already."""
    return any(op.kind == DELIVER for op in graph.ops)


def matched_sizes(graph: Graph) -> Graph:
    """Gradients that are there as large as those that are added to them."""
    size = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    tensors = tuple(
        msgspec.structs.replace(tensor, size_bytes=size[tensor.name.removesuffix(HELD)])
        if tensor.name.endswith(HELD) and tensor.name.removesuffix(HELD) in size
        else tensor
        for tensor in graph.tensors
    )
    return msgspec.structs.replace(graph, tensors=tensors)


def _boundary(program: Program) -> int:
    return next(i for i, op in enumerate(program.ops) if op.kind is Kind.BACKWARD)


def _stages(program: Program, count: int | None) -> tuple[dict[int, int], list[int]]:
    """Gradient to stage, and the op after which each stage ends.

    A gradient is final once nobody reads it or its parameter any more (see
    `frontends.torch.stages`).
    """
    of = program.value_tensor
    last: dict[int, int] = {}
    for index, op in enumerate(program.ops):
        for value in (*op.reads, *op.writes):
            last[of[value]] = index
    final: list[int] = []
    sizes: list[int] = []
    given: list[int] = []
    for g, spec in enumerate(program.gradients):
        if spec.value is None:
            continue
        owner = of[program.inputs[spec.input].value]
        given.append(g)
        final.append(max(last[of[spec.value]], last.get(owner, -1), _boundary(program)))
        sizes.append(program.graph.tensors[of[spec.value]].size_bytes)
    if count is None:
        device = program.graph.meta.get("device", "cpu")
        machine = PRESETS["cpu" if device.startswith("cpu") else "a100-80gb"]
        count = stage_count(sum(sizes), sum(op_time(program, op, machine) for op in program.ops))
    ends = stage_ends(final, sizes, count)
    return {g: bisect_left(ends, end) for g, end in zip(given, final, strict=True)}, ends


class _Weaver:
    """Puts the deliveries into program and graph."""

    def __init__(self, program: Program, stage_of: dict[int, int], ends: list[int]) -> None:
        self.program, self.stage_of, self.ends = program, stage_of, ends
        self.ops = list(program.graph.ops)
        self.tensors = list(program.graph.tensors)
        self.marks = {tensor.name: i for i, tensor in enumerate(self.tensors)}
        self.boundary = _boundary(program)
        self.maker = {t: i for i, op in enumerate(self.ops) for t in op.outputs}

    def woven(self) -> Program:
        """Program and graph with a delivery after each end of a stage, the last one at the end."""
        deliveries = []
        before = self._mark(self.boundary)
        for stage in range(len(self.ends)):
            graph_op, op = self._delivery(stage, before)
            deliveries.append((graph_op, op))
            before = next(iter(graph_op.outputs), before)
        places = [*self.ends[:-1], len(self.ops) - 1]
        ops: list[ProgramOp] = []
        graph_ops: list[Op] = []
        for index, op in enumerate(self.program.ops):
            ops.append(op)
            graph_ops.append(self.ops[index])
            if index in places:
                delivery = deliveries[places.index(index)]
                graph_ops.append(delivery[0])
                ops.append(delivery[1])
        graph = self.program.graph
        graph = msgspec.structs.replace(
            graph,
            ops=tuple(graph_ops),
            tensors=tuple(self.tensors),
            meta={**graph.meta, "gradients": "existing"},
        )
        return replace(self.program, graph=graph, ops=tuple(ops))

    def _delivery(self, stage: int, before: int) -> tuple[Op, ProgramOp]:
        """The op of a stage; it follows `before`, a tensor of the one before it."""
        program, of = self.program, self.program.value_tensor
        specs = [program.gradients[g] for g, s in self.stage_of.items() if s == stage]
        values = [spec.value for spec in specs if spec.value is not None]
        made = [of[value] for value in values]
        watched = {*made, *(of[program.inputs[spec.input].value] for spec in specs)}
        known = self._ancestors(self.maker[t] for t in made)
        follows = {
            index
            for index in range(self.boundary + 1, len(self.ops))
            if watched.intersection(self.ops[index].inputs) and index not in known
        }
        reads = [before]
        for spec, t in zip(specs, made, strict=True):
            if program.inputs[spec.input].kind != "param":
                follows.add(self.maker[t])  # stays, for nobody adds it to anything
                continue
            tensor = self.tensors[t]
            self.tensors[t] = msgspec.structs.replace(tensor, output=False)
            reads += [t, len(self.tensors)]
            self.tensors.append(Tensor(tensor.name + HELD, tensor.size_bytes, spec=tensor.spec))
        last = stage == len(self.ends) - 1
        if last:
            follows |= self._loose_ends()
        reads += [self._mark(index) for index in sorted(follows)]
        writes = () if last else (self._new_mark(f"deliver.{stage}"),)
        op = Op(
            f"deliver.{stage}", DELIVER, 0, tuple(dict.fromkeys(reads)), writes,
            recompute=False, phase="backward",
        )  # fmt: skip
        return op, ProgramOp(Kind.DELIVER, None, tuple(values), ())

    def _ancestors(self, ops: Iterable[int]) -> set[int]:
        found: set[int] = set()
        stack = list(ops)
        while stack:
            index = stack.pop()
            if index not in found:
                found.add(index)
                stack.extend(self.maker[t] for t in self.ops[index].inputs if t in self.maker)
        return found

    def _loose_ends(self) -> set[int]:
        """Backward ops that nobody waits for; the last delivery does."""
        read = {t for op in self.ops for t in op.inputs}
        given = (spec.value for spec in self.program.gradients if spec.value is not None)
        read |= {self.program.value_tensor[value] for value in given}
        return {
            index
            for index in range(self.boundary + 1, len(self.ops))
            if not read.intersection(self.ops[index].outputs)
        }

    def _mark(self, index: int) -> int:
        """The tensor without bytes that an op makes for those who must follow it."""
        op = self.ops[index]
        mark = self.marks.get(f"after.{op.name}")
        if mark is None:
            mark = self._new_mark(op.name)
            self.ops[index] = msgspec.structs.replace(op, outputs=(*op.outputs, mark))
            self.maker[mark] = index
        return mark

    def _new_mark(self, name: str) -> int:
        self.marks[f"after.{name}"] = len(self.tensors)
        self.tensors.append(Tensor(f"after.{name}", 0, output=True))
        return len(self.tensors) - 1
