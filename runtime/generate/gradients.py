"""Where in backward each gradient leaves the generated code, which as a copy, and which is None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...frontends.torch.program import Kind
from ...frontends.torch.stages import stage_count, stage_ends

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...frontends.torch.program import Program
    from .code import Sharding
    from .emitter import Emitter
    from .order import Order


@dataclass(frozen=True)
class Departures:
    """When gradients leave.

    Attributes
    ----------
    due
        Place in backward -> gradients that leave after that step; -1 is before the first step.
    cloned
        Gradients that leave as a copy, because their memory is also something else's.
    ends
        Places after which a stage ends.
    final
        Gradient -> place after which it leaves.
    unit_of
        Gradient -> sharded unit of its parameter. A stage ends with the last gradient of each unit.
    """

    due: dict[int, tuple[int, ...]]
    cloned: frozenset[int]
    ends: frozenset[int]
    final: dict[int, int] = field(default_factory=dict)
    unit_of: dict[int, int] = field(default_factory=dict)


def plan_departures(
    program: Program,
    order: Order,
    emitter: Emitter,
    stages: int | None,
    sharding: Sharding | None = None,
) -> Departures:
    """Decide when each gradient leaves.

    Parameters
    ----------
    program, order
        The step and its executions.
    emitter
        For the storages of values.
    stages
        Largest number of stages; None lets gradient bytes and step time decide. A step that adds
        to existing gradients says itself where they leave.
    sharding
        Sharded units: the gradients of one are reduced together, as soon as all are there.
    """
    last_use = _last_uses(program, order, emitter)
    values = {g: spec.value for g, spec in enumerate(program.gradients) if spec.value is not None}
    owner = {g: emitter.key(program.inputs[program.gradients[g].input].value) for g in values}
    groups: dict[int, list[int]] = {}
    for g, value in values.items():
        groups.setdefault(emitter.key(value), []).append(g)
    made = {emitter.key(v) for op in program.ops if op.call is not None for v in op.writes}
    returned = {emitter.key(spec.value) for spec in program.outputs if spec.value is not None}
    planned = _planned(program, order)
    final: dict[int, int] = {}
    cloned: set[int] = set()
    for key, group in groups.items():
        uses = [last_use.get(owner[g], -1) for g in group]
        for g in group:
            final[g] = planned[g] if planned else max(last_use.get(key, -1), *uses)
        # Autograd keeps the tensors it gets as `.grad`: two of them must not share memory, nor
        # may one live in an input, a tangent or an output.
        alone = key in made and key not in returned
        cloned.update(group[1:] if alone else group)
    # Copies first, so that the original can leave last and drop the storage's names.
    ranked = sorted(final, key=lambda g: (final[g], emitter.key(values[g]), g not in cloned))
    due: dict[int, list[int]] = {}
    for g in ranked:
        due.setdefault(final[g], []).append(g)
    sizes = [_bytes(program, emitter.key(values[g])) for g in ranked]
    if stages is None:
        steps = (*order.forward, *order.backward)
        time = sum(program.graph.ops[step.op].time_ns for step in steps if step.op >= 0)
        stages = stage_count(sum(sizes), time)
    counted = stage_ends([final[g] for g in ranked], sizes, stages)
    ends = set(planned.values() or counted)
    unit_of: dict[int, int] = {}
    if sharding is not None:
        given = [i for i, spec in enumerate(program.inputs) if spec.kind != "tangent"]
        of_input = {given[place]: unit for place, unit in sharding.of_input.items()}
        inputs = {g: program.gradients[g].input for g in final}
        unit_of = {g: of_input[i] for g, i in inputs.items() if i in of_input}
        for unit in set(unit_of.values()):
            ends.add(max(final[g] for g, other in unit_of.items() if other == unit))
    return Departures(
        {place: tuple(group) for place, group in due.items()},
        frozenset(cloned),
        frozenset(ends),
        final,
        unit_of,
    )


def _planned(program: Program, order: Order) -> dict[int, int]:
    """Gradient -> place of the delivery that hands it over; empty if the step has none."""
    gradient = {spec.value: g for g, spec in enumerate(program.gradients)}
    return {
        gradient[value]: place
        for place, step in enumerate(order.backward)
        if step.op >= 0 and program.ops[step.op].kind is Kind.DELIVER
        for value in program.ops[step.op].reads
    }


def made_early(program: Program, order: Order, emitter: Emitter) -> frozenset[int]:
    """Gradients that no tangent is needed for, if the schedule makes them in forward."""
    made = {
        emitter.key(value)
        for step in order.forward
        if step.op >= 0
        for value in program.ops[step.op].writes
    }
    return frozenset(
        g
        for g, spec in enumerate(program.gradients)
        if spec.value is not None and emitter.key(spec.value) in made
    )


def _last_uses(program: Program, order: Order, emitter: Emitter) -> dict[int, int]:
    """Storage -> place of the last step in backward that reads it or makes it first."""
    last: dict[int, int] = {}
    for place, step in enumerate(order.backward):
        if step.op < 0:
            continue
        op = program.ops[step.op]
        used = op.reads if step.again else (*op.reads, *op.writes)
        for value in used:
            last[emitter.key(value)] = place
    return last


def _bytes(program: Program, key: int) -> int:
    return program.graph.tensors[key].size_bytes if key >= 0 else 0


def tangents_behind(program: Program) -> tuple[frozenset[int], ...]:
    """For each gradient: the tangents (by place among the tangents) that it depends on.

    A gradient none of whose tangents arrived is None, as in the plain run; zeros would make
    optimizers with momentum or weight decay move the parameter.
    """
    of = behind_values(program)
    return tuple(
        frozenset() if spec.value is None else of(spec.value) for spec in program.gradients
    )


def behind_values(program: Program) -> Callable[[int], frozenset[int]]:
    """Gives the places of the tangents that a value depends on."""
    tangents = [spec.value for spec in program.inputs if spec.kind == "tangent"]
    behind = {value: frozenset((place,)) for place, value in enumerate(tangents)}

    def of(value: int) -> frozenset[int]:
        if value not in behind:
            view = program.views.get(value)
            sources = () if view is None else tuple(view.refs())
            behind[value] = frozenset().union(*map(of, sources))
        return behind[value]

    for op in program.ops:
        if op.kind is not Kind.BACKWARD:
            found = frozenset[int]().union(*map(of, op.reads))
            behind.update(dict.fromkeys(op.writes, found))
    return of
