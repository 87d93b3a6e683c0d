"""From the joint graph to `Graph` and `Program`.

Views are folded into the storage they look at. What depends on a tangent runs after the boundary,
what the forward's results need runs before it; both keep the traced order, which is the order in
which eager PyTorch runs them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .assemble import Item, Wiring, assemble, label_of
from .generators import state_bytes
from .gradients import own_gradients
from .layouts import true_results
from .masks import whole_masks
from .mutation import Separated, separate_mutations
from .norms import chosen_norms
from .phases import ancestors, split
from .program import Kind, Program, ProgramOp, ValueMeta
from .rng import draws
from .sources import shared_memory
from .specs import input_specs
from .trace import trace_values
from .updates import Update, update_in_place

if TYPE_CHECKING:
    from ...solver.graph import Phase
    from .export import Joint
    from .interface import LiteralGuard, TensorGuard
    from .step import Step
    from .values import Line, Traced, Values

BOUNDARY = "lowtide.backward"


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
    with true_results():
        traced = trace_values(joint, step.sources, shared, mode)
    values = traced.values
    wiring = wire(joint, traced)
    forward = [*wiring.outputs.values(), *wiring.mutations.values()]
    whole = chosen_norms(whole_masks(traced), values)
    lines = split(whole, forward, wiring.tangents, wiring.gradients)
    lines = own_gradients(lines, values, wiring)
    needed = ancestors(lines, wiring.gradients.values())
    separated = separate_mutations(lines, values, wiring, needed)
    updates = update_in_place(separated, values, wiring, step.sources, device)
    inputs, positions = input_specs(step, wiring)
    items = schedule(separated, values, needed)
    for item in items:
        if item.name in updates:
            update_item(item, updates[item.name], positions)
    at = next((i for i, item in enumerate(items) if item.phase == "backward"), len(items))
    middle = []
    for index, value in wiring.mutations.items():
        source = wiring.sources[index]
        if value != source:
            target = positions[source]
            op = ProgramOp(Kind.WRITE_BACK, None, (value,), (), target_input=target)
            label = f"write_back.{label_of(inputs[target])}"
            middle.append(Item(label, op, "forward", recompute=False))
    boundary = ProgramOp(Kind.BACKWARD, None, (), tuple(wiring.tangents.values()))
    middle.append(Item(BOUNDARY, boundary, "backward", recompute=False))
    items[at:at] = middle
    return assemble(
        items,
        separated.lines,
        values,
        step,
        inputs,
        wiring,
        device=device,
        name=name,
        guards=guards,
        extra_resident_bytes=extra_resident_bytes,
    )


def wire(joint: Joint, traced: Traced) -> Wiring:
    """Sort the arguments and results of the joint graph by what they stand for."""
    wiring = Wiring(constants=traced.constants)
    for slot, value in zip(joint.arguments, traced.arguments, strict=True):
        if slot.role == "input":
            wiring.sources[slot.index] = value
        elif slot.role == "tangent":
            wiring.tangents[slot.index] = value
    for result, made in zip(joint.results, traced.results, strict=True):
        if result is None or made is None:
            continue
        if result.role == "output":
            wiring.outputs[result.index] = made
        elif result.role == "mutation":
            wiring.mutations[result.index] = made
        elif result.role == "gradient":
            wiring.gradients[result.index] = made
    return wiring


def schedule(separated: Separated, values: Values, needed: set[str]) -> list[Item]:
    """The ops of all lines, snapshots and saved generator states among them."""
    early: list[Item] = []
    late: list[Item] = []

    def snapshots(reader: str) -> list[Item]:
        return [
            Item(
                values.name[values.storage[copy]],
                ProgramOp(Kind.SNAPSHOT, None, (original,), (copy,)),
                "forward",
                recompute=False,
            )
            for copy, original in separated.snapshots.get(reader, [])
        ]

    for line in separated.lines:
        if line.view:
            continue
        if line.backward:
            late += call_items(line, values, separated.once, needed)
        else:
            early += snapshots(line.name)
            early += call_items(line, values, separated.once, needed)
    return [*early, *snapshots(""), *late]


def update_item(item: Item, update: Update, positions: dict[int, int]) -> None:
    """Note what an op does to buffers; `positions` are those of values among the inputs."""
    targets = tuple(positions[value] for value in update.targets)
    item.op = replace(item.op, updates=targets, again=update.again)
    item.rerun_bytes = update.rerun_bytes


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
