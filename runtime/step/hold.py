"""Deliveries of gradients wait for the last reader of their parameters.

A rerun after a delivery could else read a weight that an optimizer in a gradient hook has changed
by then. Plans of the solver have no such reruns, for nothing would need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...frontends.torch.program import Kind
from ...solver.check import check_peak
from ...solver.schedule import Schedule

if TYPE_CHECKING:
    from ...frontends.torch.program import Program
    from ...solver.plan import Plan


def held_back(program: Program, plan: Plan) -> Plan:
    """The plan with the schedule of `hold_back`, and its peak; itself if nothing changes."""
    schedule = hold_back(program, plan.schedule)
    if schedule is plan.schedule:
        return plan
    steps = schedule.to_text()
    peak = check_peak(program.graph, steps)
    return msgspec.structs.replace(plan, steps=steps, peak_bytes=peak)


def hold_back(program: Program, schedule: Schedule) -> Schedule:
    """The schedule with deliveries no earlier than they may be, the last one at the end.

    The same object if it is so already, or if the step has no deliveries.
    """
    of = program.value_tensor
    owner = {
        spec.value: of[program.inputs[spec.input].value]
        for spec in program.gradients
        if spec.value is not None
    }
    owners = {
        index: {owner[value] for value in op.reads}
        for index, op in enumerate(program.ops)
        if op.kind is Kind.DELIVER
    }
    if not owners:
        return schedule
    computes = schedule.computes()
    last_read: dict[int, int] = {}
    for place, op in enumerate(computes):
        if op not in owners:
            last_read.update({of[value]: place for value in program.ops[op].reads})
    deliveries = [(place, op) for place, op in enumerate(computes) if op in owners]
    after: dict[int, list[int]] = {}
    earliest = 0
    for place, op in deliveries:
        earliest = max(earliest, place, *(last_read.get(t, -1) for t in owners[op]))
        if op == deliveries[-1][1]:
            earliest = len(computes) - 1
        after.setdefault(earliest, []).append(op)
    if after == {place: [op] for place, op in deliveries}:
        return schedule
    held: list[int] = []
    for place, op in enumerate(computes):
        if op not in owners:
            held.append(op)
        held += after.get(place, [])
    return Schedule.from_computes(program.graph, held)
