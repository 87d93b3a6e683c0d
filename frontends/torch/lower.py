"""From the joint graph to `Graph` and `Program`.

Views are folded into the storage they look at. What depends on a tangent runs after the boundary,
what the forward's results need runs before it; both keep the traced order, which is the order in
which eager PyTorch runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import CaptureError
from ...solver.graph import Graph, Op, Phase, Tensor
from .export import is_plain, storage_key
from .gradients import own_gradients
from .mutation import separate_mutations
from .program import (
    Call,
    GradSpec,
    InputSpec,
    Kind,
    LiteralGuard,
    OutputSpec,
    Program,
    ProgramOp,
    TensorGuard,
    ValueMeta,
)
from .rng import draws, state_bytes
from .step import Source, Step, shown
from .values import Line, Values, trace_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .export import Joint

_SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip
BOUNDARY = "lowtide.backward"


@dataclass
class Item:
    """An op of the program on its way into the graph."""

    name: str
    op: ProgramOp
    phase: Phase
    origin: str = ""
    recompute: bool = True


def lower(
    joint: Joint,
    step: Step,
    mode: Any,
    *,
    device: torch.device,
    name: str,
    guards: tuple[TensorGuard | LiteralGuard, ...],
    extra_resident_bytes: int,
) -> Program:
    """Make the program and its graph; op times are zero until a cost model fills them in."""
    changed = {slot.index for slot in joint.results if slot is not None and slot.role == "mutation"}
    shared = shared_memory(step.sources, changed)
    traced = trace_values(joint, [source.fake for source in step.sources], shared, mode)
    values = traced.values
    arguments = dict(zip(joint.arguments, traced.arguments, strict=True))
    source_value = {slot.index: v for slot, v in arguments.items() if slot.role == "input"}
    tangents = {slot.index: v for slot, v in arguments.items() if slot.role == "tangent"}
    outputs: dict[int, int] = {}
    mutations: dict[int, int] = {}
    gradients: dict[int, int] = {}
    kinds = {"output": outputs, "mutation": mutations, "gradient": gradients}
    for slot, value in zip(joint.results, traced.results, strict=True):
        if slot is not None and value is not None:
            kinds[slot.role][slot.index] = value

    resident = {values.storage[v] for v in source_value.values()}
    resident |= {values.storage[v] for v, _ in traced.constants}
    lines = split(traced.lines, [*outputs.values(), *mutations.values()], tangents, gradients)
    own = own_gradients(
        lines, values, gradients, source_value, resident, outputs.values(), tangents.values()
    )
    lines, gradients = own
    needed = ancestors(lines, gradients.values())
    separated = separate_mutations(
        lines,
        values,
        [source_value[i] for i, v in mutations.items() if v != source_value[i]],
        mutations,
        {*outputs.values(), *gradients.values()},
        needed,
    )
    lines, snapshots = separated.lines, separated.snapshots

    def save(reader: str) -> list[Item]:
        return [
            Item(
                values.name[values.storage[copy]],
                ProgramOp(Kind.SNAPSHOT, None, (original,), (copy,)),
                "forward",
                recompute=False,
            )
            for copy, original in snapshots.get(reader, [])
        ]

    positions: dict[int, int] = {}
    inputs = input_specs(step, source_value, traced.constants, tangents, positions)
    early: list[Item] = []
    late: list[Item] = []
    for line in lines:
        if line.view:
            continue
        if line.backward:
            late += call_items(line, values, separated.once, needed)
        else:
            early += save(line.name)
            early += call_items(line, values, separated.once, needed)
    early += save("")
    for index, value in mutations.items():
        if value != source_value[index]:
            at = positions[source_value[index]]
            op = ProgramOp(Kind.WRITE_BACK, None, (value,), (), target_input=at)
            early.append(Item(f"write_back.{label_of(inputs[at])}", op, "forward", recompute=False))
    boundary = ProgramOp(Kind.BACKWARD, None, (), tuple(tangents.values()))
    items = [*early, Item(BOUNDARY, boundary, "backward", recompute=False), *late]
    return assemble(
        items, lines, values, step, inputs, source_value, outputs, tangents, gradients,
        device=device, name=name, guards=guards, extra_resident_bytes=extra_resident_bytes,
    )  # fmt: skip


def shared_memory(sources: list[Source], changed: set[int]) -> list[int]:
    """For each source the first one that shares its memory.

    Raises
    ------
    CaptureError
        If one of several sources that share memory is changed by the step.
    """
    first: dict[int, int] = {}
    found = []
    for index, source in enumerate(sources):
        key = storage_key(source.real) if is_plain(source.real) else -1 - index
        found.append(first.setdefault(key, index))
    for index in changed:
        others = [i for i, f in enumerate(found) if f == found[index] and i != index]
        if others:
            what = [shown(sources[i].name) or sources[i].kind for i in (index, others[0])]
            raise CaptureError(
                f"the step changes {what[0]}, which shares memory with {what[1]}; pass a clone"
            )
    return found


def split(
    lines: list[Line], forward: list[int], tangents: dict[int, int], gradients: dict[int, int]
) -> list[Line]:
    """Drop dead lines and decide the phase of the others; forward lines come first.

    A line that depends on a tangent is a backward one. Of the others, those that a forward result
    needs are forward ones, and the rest are where the tracer met them. A random line is kept even
    if nobody reads it: it moves the generator on.
    """
    producer = {v: line for line in lines for v in line.writes}
    late = set(tangents.values())
    for line in lines:
        if any(v in late for v in line.call.refs()):
            late.update(line.writes)

    def needed(roots: list[int]) -> set[str]:
        found: set[str] = set()
        stack = list(roots)
        while stack:
            line = producer.get(stack.pop())
            if line is not None and line.name not in found:
                found.add(line.name)
                stack.extend(line.call.refs())
        return found

    random = [v for line in lines if draws(line.call) for v in line.writes]
    before = needed(forward)
    checked = [v for line in lines if not line.writes for v in line.call.refs()]
    alive = before | needed([*gradients.values(), *random, *checked])
    kept = []
    for line in lines:
        if line.writes and line.name not in alive:
            continue
        depends = any(v in late for v in line.call.refs())
        if depends and line.name in before:
            raise CaptureError(f"{line.name} is part of the forward but depends on a gradient")
        kept.append(replace(line, backward=depends or (line.backward and line.name not in before)))
    # a forward line may only read forward lines
    early = [line for line in kept if not line.backward]
    pull = needed([v for line in early for v in line.call.refs()])
    kept = [replace(k, backward=k.backward and k.name not in pull) for k in kept]
    return [k for k in kept if not k.backward] + [k for k in kept if k.backward]


def ancestors(lines: list[Line], gradients: Iterable[int]) -> set[str]:
    """Names of the lines that the backward needs, whatever their phase."""
    producer = {v: line for line in lines for v in line.writes}
    stack = [*gradients, *(v for line in lines if line.backward for v in line.call.refs())]
    found: set[str] = set()
    while stack:
        line = producer.get(stack.pop())
        if line is not None and line.name not in found:
            found.add(line.name)
            stack.extend(line.call.refs())
    return found


def call_items(line: Line, values: Values, once: set[str], needed: set[str]) -> list[Item]:
    """The op of a line, after the op that saves the generator's state if a rerun may need it."""
    phase: Phase = "backward" if line.backward else "forward"
    reads, writes = tuple(line.reads), tuple(line.writes)
    random = draws(line.call)
    recompute = line.name not in once and bool(line.writes)
    if not random or not recompute or line.name not in needed:
        op = ProgramOp(Kind.CALL, line.call, reads, writes, random=random)
        return [Item(line.name, op, phase, line.origin, recompute and not random)]
    name = f"rng_state.{line.name}"
    size = state_bytes(values.meta[writes[0]].device)
    meta = ValueMeta((size,), (1,), 0, torch.uint8, torch.device("cpu"))
    state = values.new(meta, name)
    save = ProgramOp(Kind.RNG_STATE, None, (), (state,))
    op = ProgramOp(Kind.CALL, line.call, (*reads, state), writes, random=True, rng_value=state)
    return [
        Item(name, save, phase, line.origin, recompute=False),
        Item(line.name, op, phase, line.origin),
    ]


def label_of(spec: InputSpec) -> str:
    """A short name of an input."""
    return spec.fqn or f"{spec.kind}.{spec.position if spec.position >= 0 else spec.value}"


def input_specs(
    step: Step,
    source_value: dict[int, int],
    constants: list[tuple[int, torch.Tensor]],
    tangents: dict[int, int],
    positions: dict[int, int],
) -> tuple[InputSpec, ...]:
    """Inputs of the program; fills `positions` with value -> index."""
    assert step.plan is not None
    specs: list[InputSpec] = []
    for index, source in enumerate(step.sources):
        if index not in source_value:
            continue
        specs.append(
            InputSpec(
                source.kind,  # type: ignore[arg-type]
                source_value[index],
                fqn=shown(source.name),
                position=source.position,
                tensor=source.real if source.kind == "constant" else None,
                requires_grad=source.real.requires_grad,
            )
        )
    specs += [InputSpec("constant", value, tensor=real) for value, real in constants]
    returned = step.plan.returned
    specs += [
        InputSpec("tangent", value, position=returned[index]) for index, value in tangents.items()
    ]
    positions.update({spec.value: i for i, spec in enumerate(specs)})
    return tuple(specs)


def assemble(
    items: list[Item],
    lines: list[Line],
    values: Values,
    step: Step,
    inputs: tuple[InputSpec, ...],
    source_value: dict[int, int],
    outputs: dict[int, int],
    tangents: dict[int, int],
    gradients: dict[int, int],
    *,
    device: torch.device,
    name: str,
    guards: tuple[TensorGuard | LiteralGuard, ...],
    extra_resident_bytes: int,
) -> Program:
    """Number the storages that are used, and put everything together."""
    assert step.plan is not None
    assert step.plan.spec is not None
    views: dict[int, Call] = {v: line.call for line in lines if line.view for v in line.writes}
    position = {spec.value: i for i, spec in enumerate(inputs)}
    leaves = []
    for leaf in step.plan.leaves:
        at = position.get(source_value.get(leaf.source, -1))
        value = outputs.get(leaf.result) if leaf.result >= 0 else source_value.get(leaf.source)
        leaves.append(
            OutputSpec(
                value,
                leaf.literal,
                leaf.differentiable and leaf.result in tangents,
                at,
                leaf.refuse_backward,
            )
        )
    pinned = {values.storage[v] for v in (*gradients.values(), *tangents.values())}
    pinned |= {values.storage[o.value] for o in leaves if o.value is not None}
    made = {values.storage[v] for item in items for v in item.op.writes}
    pinned &= made
    used = made | {values.storage[v] for item in items for v in item.op.reads}
    used |= {values.storage[o.value] for o in leaves if o.value is not None}
    used |= {values.storage[s.value] for s in inputs if s.kind in ("param", "buffer", "input")}
    inputs = tuple(s for s in inputs if s.kind != "constant" or values.storage[s.value] in used)
    for spec in inputs:
        if spec.kind == "constant" and spec.requires_grad:
            shape = list(values.meta[spec.value].shape)
            raise CaptureError(
                f"the step closes over a tensor of shape {shape} that requires a gradient; make "
                "it a parameter of the model, or pass it in the batch"
            )
    # positions may have moved when unused constants went
    moved = {spec.value: i for i, spec in enumerate(inputs)}
    old = {i: value for value, i in position.items()}
    for item in items:
        if item.op.target_input is not None:
            item.op = replace(item.op, target_input=moved[old[item.op.target_input]])
    leaves = [
        o if o.input_position is None
        else replace(o, input_position=moved[old[o.input_position]])
        for o in leaves
    ]  # fmt: skip
    labels = {values.storage[s.value]: label_of(s) for s in reversed(inputs)}
    order = {s: i for i, s in enumerate(sorted(used))}
    base: dict[int, int] = {}
    for v, s in enumerate(values.storage):
        base.setdefault(s, v)
    tensors = tuple(
        Tensor(
            labels.get(s, values.name[s]),
            allocated(values.nbytes[s], values.home[s], device),
            output=s in pinned,
            spec=spec_text(values, base[s]),
        )
        for s in order
    )
    ops = tuple(graph_op(item, values, order, device) for item in items)
    graph = Graph(
        name, ops, tensors, extra_resident_bytes=extra_resident_bytes,
        meta={"device": str(device), "torch": str(torch.__version__), "times": "none"},
    )  # fmt: skip
    root = step.__dict__["root"]
    return Program(
        graph=graph,
        ops=tuple(item.op for item in items),
        value_tensor=tuple(order.get(s, -1) for s in values.storage),
        value_meta=tuple(values.meta),
        views=views,
        inputs=inputs,
        outputs=tuple(leaves),
        out_spec=step.plan.spec,
        gradients=grad_specs(step, inputs, source_value, gradients),
        in_spec=step.in_spec,
        guards=guards,
        training={shown(n): m.training for n, m in root.named_modules() if m is not root},
        shared=shared_names(root),
    )


def graph_op(item: Item, values: Values, order: dict[int, int], device: torch.device) -> Op:
    """An item as the solver sees it."""
    reads = tuple(dict.fromkeys(order[values.storage[v]] for v in item.op.reads))
    writes = tuple(dict.fromkeys(order[values.storage[v]] for v in item.op.writes))
    call = item.op.call
    source, _, module = item.origin.partition("\n")
    rerun = -1
    if item.op.rng_value is not None:
        rerun = allocated(state_bytes(device), torch.device("cpu"), device)
    if call is None:
        kind = f"lowtide.{item.op.kind}"
    elif isinstance(call.target, torch._ops.OpOverload):
        kind = str(call.target)
    else:
        kind = f"lowtide.{call.target.__name__}"
    return Op(
        item.name, kind, 0, reads, writes, rerun_workspace_bytes=rerun, recompute=item.recompute,
        phase=item.phase, module=module, source=source,
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


def grad_specs(
    step: Step,
    inputs: tuple[InputSpec, ...],
    source_value: dict[int, int],
    gradients: dict[int, int],
) -> tuple[GradSpec, ...]:
    """One per parameter, and per input that requires a gradient."""
    by_value = {source_value[i]: v for i, v in gradients.items()}
    return tuple(
        GradSpec(index, by_value.get(spec.value))
        for index, spec in enumerate(inputs)
        if spec.kind == "param" or (spec.kind == "input" and spec.requires_grad)
    )


def shared_names(root: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """Groups of names that are one parameter or buffer."""
    groups: dict[int, list[str]] = {}
    for name, p in root.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), []).append(shown(name))
    for name, b in root.named_buffers(remove_duplicate=False):
        groups.setdefault(id(b), []).append(shown(name))
    return tuple(tuple(g) for g in groups.values() if len(g) > 1)
