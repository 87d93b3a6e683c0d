"""Numbers the storages that are used and puts graph and program together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import torch

from ...solver.errors import CaptureError
from ...solver.graph import Graph, Op, Phase, Tensor
from .generators import state_bytes
from .inplace import overwritable
from .ordering import order_edges
from .program import Kind, Program, ProgramOp
from .sources import shown
from .specs import grad_specs, output_specs, settings_of, shared_names

if TYPE_CHECKING:
    from .interface import InputSpec, LiteralGuard, TensorGuard
    from .step import Step
    from .values import Line, Values

_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


@dataclass
class Item:
    """An op of the program on its way into the graph.

    `rerun_bytes` are those that a later run takes beyond what the first one takes; -1 for none.
    """

    name: str
    op: ProgramOp
    phase: Phase
    origin: str = ""
    recompute: bool = True
    rerun_bytes: int = -1


@dataclass
class Wiring:
    """What the arguments and results of the joint graph stand for, as values.

    Attributes
    ----------
    sources, tangents
        By index of the step's source, and of the returned tensor.
    outputs, mutations, gradients
        By index of the returned tensor, and of the source.
    constants
        Values of tensors that the graph itself holds, with the tensors.
    """

    sources: dict[int, int] = field(default_factory=dict)
    tangents: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    mutations: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    constants: list[tuple[int, torch.Tensor]] = field(default_factory=list)


def label_of(spec: InputSpec) -> str:
    """A short name of an input."""
    return spec.fqn or f"{spec.kind}.{spec.position if spec.position >= 0 else spec.value}"


def used_inputs(inputs: tuple[InputSpec, ...], used: set[int], values: Values) -> list[int]:
    """Indices of the inputs to keep: all but constants that nobody reads.

    Raises
    ------
    CaptureError
        If a constant that is read requires a gradient, which would be lost.
    """
    kept = []
    for index, spec in enumerate(inputs):
        if spec.kind == "constant":
            if values.storage[spec.value] not in used:
                continue
            if spec.requires_grad:
                shape = list(values.meta[spec.value].shape)
                raise CaptureError(
                    f"the step closes over a tensor of shape {shape} that requires a gradient; "
                    "make it a parameter of the model, or pass it in the batch"
                )
        kept.append(index)
    return kept


def assemble(
    items: list[Item],
    lines: list[Line],
    values: Values,
    step: Step,
    inputs: tuple[InputSpec, ...],
    wiring: Wiring,
    *,
    device: torch.device,
    name: str,
    guards: tuple[TensorGuard | LiteralGuard, ...],
    extra_resident_bytes: int,
) -> Program:
    """Number the storages that are used, and put everything together."""
    assert step.plan is not None
    assert step.plan.spec is not None
    of = values.storage
    made = {of[v] for item in items for v in item.op.writes}
    seen = {of[v] for v in wiring.outputs.values()}
    seen |= {
        of[wiring.sources[leaf.source]]
        for leaf in step.plan.leaves
        if leaf.source in wiring.sources
    }
    read = {of[v] for item in items for v in item.op.reads}
    read |= {of[inputs[changed].value] for item in items for changed in item.op.changes}
    kept = used_inputs(inputs, read | seen, values)
    moved = {old: new for new, old in enumerate(kept)}
    inputs = tuple(inputs[old] for old in kept)
    for item in items:
        if item.op.target_input is not None:
            item.op = replace(item.op, target_input=moved[item.op.target_input])
        item.op = replace(item.op, updates=tuple(moved[old] for old in item.op.updates))
    position = {spec.value: i for i, spec in enumerate(inputs)}
    pinned = made & (
        seen | {of[v] for v in (*wiring.gradients.values(), *wiring.tangents.values())}
    )
    used = made | read | seen | {of[spec.value] for spec in inputs if spec.kind != "tangent"}
    order = {storage: i for i, storage in enumerate(sorted(used))}
    labels = {of[spec.value]: label_of(spec) for spec in reversed(inputs)}
    base: dict[int, int] = {}
    for value, storage in enumerate(of):
        base.setdefault(storage, value)
    tensors = tuple(
        Tensor(
            labels.get(storage, values.name[storage]),
            allocated(values.nbytes[storage], values.home[storage], device),
            output=storage in pinned,
            spec=spec_text(values, base[storage]),
        )
        for storage in order
    )
    follows = order_edges(items, values, inputs, seen & made)
    first = sorted({before for group in follows.values() for before in group})
    mark = {before: len(tensors) + place for place, before in enumerate(first)}
    tensors += tuple(Tensor(f"after.{items[before].name}", 0, output=True) for before in first)
    results = tuple(order[storage] for storage in sorted(seen & made))
    graph = Graph(
        name,
        tuple(
            graph_op(
                item,
                values,
                order,
                device,
                reads=(
                    *(results if item.op.kind is Kind.BACKWARD else ()),
                    *(mark[before] for before in follows.get(index, ())),
                ),
                writes=(mark[index],) if index in mark else (),
            )
            for index, item in enumerate(items)
        ),
        tensors,
        extra_resident_bytes=extra_resident_bytes,
        meta={"device": str(device), "torch": str(torch.__version__), "times": "none"},
    )
    ops = tuple(item.op for item in items)
    value_tensor = tuple(order.get(storage, -1) for storage in of)
    taken = overwritable(
        graph, ops, value_tensor, values.meta, [values.nbytes[storage] for storage in order]
    )
    graph = msgspec.structs.replace(
        graph,
        ops=tuple(
            msgspec.structs.replace(op, overwrites=t)
            for op, t in zip(graph.ops, taken, strict=True)
        ),
    )
    root = step.__dict__["root"]
    return Program(
        graph=graph,
        ops=ops,
        value_tensor=value_tensor,
        value_meta=tuple(values.meta),
        views={v: line.call for line in lines if line.view for v in line.writes},
        inputs=inputs,
        outputs=output_specs(step, wiring, position),
        out_spec=step.plan.spec,
        gradients=grad_specs(inputs, wiring, step.contributions),
        in_spec=step.in_spec,
        guards=guards,
        training={shown(n): m.training for n, m in root.named_modules() if m is not root},
        shared=shared_names(root),
        settings=settings_of(root, step.reads.names),
        reads=step.reads,
        autocast=step.autocast,
        autocast_cache=step.autocast_cache,
        switches=step.switches,
        questions=step.questions,
        refill=step.refills[-1],
    )


def graph_op(
    item: Item,
    values: Values,
    order: dict[int, int],
    device: torch.device,
    *,
    reads: tuple[int, ...],
    writes: tuple[int, ...],
) -> Op:
    """An item as the solver sees it; `reads` and `writes` are the tensors that fix its place."""
    ins = tuple(dict.fromkeys(order[values.storage[v]] for v in item.op.reads))
    outs = tuple(dict.fromkeys(order[values.storage[v]] for v in item.op.writes))
    call = item.op.call
    source, _, module = item.origin.partition("\n")
    rerun, restores = item.rerun_bytes, -1
    if item.op.rng_value is not None:
        restores = order[values.storage[item.op.rng_value]]
        rerun = allocated(state_bytes(device), torch.device("cpu"), device)
    kind = f"lowtide.{item.op.kind}" if call is None else call.name
    return Op(
        item.name, kind, 0, ins + reads, outs + writes, rerun_workspace_bytes=rerun,
        recompute=item.recompute, phase=item.phase, module=module, source=source,
        restores=restores,
    )  # fmt: skip


def allocated(nbytes: int, where: torch.device, device: torch.device) -> int:
    """Bytes that an allocation takes in the memory of the step's device."""
    if where.type != device.type:
        return 0
    return nbytes if device.type == "cpu" else -(-nbytes // 512) * 512


def spec_text(values: Values, value: int) -> str:
    """Data type and shape of a value as text."""
    meta = values.meta[value]
    short = _SHORT.get(meta.dtype, str(meta.dtype).removeprefix("torch."))
    return f"{short}[{', '.join(map(str, meta.shape))}]"
