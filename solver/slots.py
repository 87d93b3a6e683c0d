"""Where to refine a cut: the slots at which the schedule of a relaxation breaks the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .milp.stages import cut_after, split_at
from .schedule import Schedule
from .simulate import simulate

if TYPE_CHECKING:
    from .array_types import Floats
    from .graph import Graph
    from .milp.staged import StagedProgram
    from .milp.stages import Stage
    from .search.anneal import Found

SLOTS = 2  # of a round
SPARE = 0.1  # of the budget


def refined(
    program: StagedProgram, values: Floats, realised: Found, room: int, *, several: bool = True
) -> tuple[Stage, ...]:
    """Split where the realised schedule is above the budget or dearer than the program thought."""
    graph, stages = program.graph, program.stages
    finer = overshot(graph, stages, realised, room, SLOTS if several else 1)
    if finer != stages:
        return finer
    planned = program.recompute_ns(values)
    extra, ops = _recomputed_per_stage(graph, realised, stages)
    order = sorted(range(len(stages)), key=lambda k: planned[k] - extra[k])
    for k in order:
        if not stages[k].exact and extra[k] > planned[k] and stages[k].first < stages[k].last:
            return split_at(stages, ops[k])
    return stages


def overshot(
    graph: Graph, stages: tuple[Stage, ...], realised: Found, room: int, most: int
) -> tuple[Stage, ...]:
    """Split where a schedule is above the budget: at up to `most` places, the worst ones first."""
    if realised.peak <= room:
        return stages
    peaks = Peaks(graph, realised)
    for _ in range(most):
        slot = peaks.worst(stages, room)
        if slot is None:
            break
        stages = slot.cut(stages)
        peaks.forget_around(slot.op, max(4, len(graph.ops) // 20))
    return stages


def slack_cuts(program: StagedProgram, values: Floats) -> list[int]:
    """Ops after which the cut between two coarse stages has memory to spare in a solution."""
    stages, memory = program.stages, program.memory
    found = []
    for k in range(1, len(stages) - 1):  # the first cut is where the backward phase begins
        last = stages[k].last
        if stages[k].exact or stages[k + 1].exact:
            continue
        held = memory.held(last)
        carried = sum(
            float(memory.size[t])
            for t, column in program.carry[k + 1].items()
            if values[column] > 0.5 and t not in held
        )
        if carried + memory.during(last) < (1.0 - SPARE) * memory.room:
            found.append(last)
    return found


@dataclass(frozen=True)
class Slot:
    """A place above the budget: a base op, or the recomputations before it."""

    op: int
    before: bool

    def cut(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The end of a stage bounds memory during its last op; recomputations need an exact one."""
        return split_at(stages, self.op) if self.before else cut_after(stages, self.op)


class Peaks:
    """Peaks of a schedule (resident bytes not counted) during base ops, and before them."""

    def __init__(self, graph: Graph, found: Found) -> None:
        simulation = simulate(graph, Schedule.from_computes(graph, found.computes))
        resident = graph.resident_bytes
        self.during = np.zeros(len(graph.ops), dtype=np.int64)
        self.before = np.zeros(len(graph.ops), dtype=np.int64)
        high, seen = 0, set()
        for op, live in zip(simulation.ops, simulation.during_bytes, strict=True):
            if op in seen:
                high = max(high, live - resident)
                continue
            seen.add(op)
            self.during[op], self.before[op] = live - resident, high
            high = 0

    def worst(self, stages: tuple[Stage, ...], limit: int) -> Slot | None:
        """The highest peak above `limit` bytes that the cut does not follow exactly yet."""
        for stage in stages:
            self.during[stage.last] = 0
            if stage.exact:
                self.before[stage.first] = 0
        slots = [
            (int(peaks.max()), Slot(int(peaks.argmax()), before))
            for peaks, before in ((self.during, False), (self.before, True))
        ]
        peak, slot = max(slots, key=lambda pair: pair[0])
        return slot if peak > limit else None

    def forget_around(self, op: int, distance: int) -> None:
        """Leave out what is near `op`."""
        for peaks in (self.during, self.before):
            peaks[max(0, op - distance) : op + distance + 1] = 0


def _recomputed_per_stage(
    graph: Graph, found: Found, stages: tuple[Stage, ...]
) -> tuple[list[int], list[int]]:
    """Nanoseconds of recomputation per stage, and the base op that the most of it precedes."""
    firsts = np.array([stage.first for stage in stages])
    time = graph.arrays.time
    per_op = np.zeros(len(graph.ops), dtype=np.int64)
    seen: set[int] = set()
    pending = 0
    for op in found.computes:
        if op in seen:
            pending += int(time[op])
            continue
        seen.add(op)
        per_op[op] = pending
        pending = 0
    totals, ops = [], []
    for k, stage in enumerate(stages):
        end = int(firsts[k + 1]) if k + 1 < len(stages) else len(graph.ops)
        part = per_op[stage.first : end]
        totals.append(int(part.sum()))
        # Splitting at the first op of a stage changes little; take the latest with the most.
        ops.append(stage.first + len(part) - 1 - int(part[::-1].argmax()))
    return totals, ops
