"""Adaptive stage refinement, the method `auto`.

Most stages of the staged program do not matter: memory binds at a few places. Start with the base
order cut once, between forward and backward. Every cut gives a relaxation, so the optimum of its
integer program is a lower bound; its solution, realised as a schedule and simulated exactly, shows
where the relaxation lies. There the cut is refined: the op becomes an exact stage of its own.
Between rounds the realised schedule is polished by local search, which gives the upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .milp.problem import Outcome
from .milp.staged import build
from .milp.stages import cut_after, free_tensors, split_at, whole
from .schedule import Schedule
from .simulate import simulate

if TYPE_CHECKING:
    from .graph import Graph
    from .incumbent import Incumbent
    from .milp.problem import Backend
    from .milp.staged import StagedProgram
    from .milp.stages import Stage
    from .search.anneal import Found, Search

# Share of the budget in small tensors that the program leaves out; refined away if it matters.
SHARES = (1e-4, 0.0)
POLISH_WORK = 5_000_000  # ops times moves of one polish, about a second


def refine(
    graph: Graph,
    budget_bytes: int,
    incumbent: Incumbent,
    search: Search,
    *,
    backend: Backend,
    gap: float,
    threads: int,
    seed: int,
) -> bool:
    """Close the gap as far as time allows; False if no schedule of the class meets the budget."""
    control = incumbent.control
    stages = whole(graph)
    if len(stages) == 1:
        slot = _Peaks(graph, search.measure(range(len(graph.ops)))).worst(stages, 0)
        stages = stages if slot is None else slot.cut(stages)
    share, stalled = 0, False
    free = free_tensors(graph, incumbent.room, SHARES[share])
    while not control.over:
        program = build(graph, budget_bytes, stages, free)
        known = incumbent.in_order
        start = None if known is None else program.start_values(known.computes)
        limit = _round_limit(incumbent, stalled)
        answer = backend.solve(
            program.problem, control=control, time_limit=limit, gap=gap / 4, threads=threads,
            seed=seed, start=start,
        )  # fmt: skip
        if answer.outcome == Outcome.INFEASIBLE:
            return incumbent.best is not None
        if math.isfinite(answer.bound):
            incumbent.raise_bound(program.bound_ns(answer.bound), f"bound, {len(stages)} stages")
        realised = None
        if answer.values is not None:
            firsts = np.array([stage.first for stage in stages], dtype=np.int64)
            carried, again = program.carried(answer.values), program.again(answer.values)
            realised = search.realise_carried(firsts, carried, again)
            incumbent.offer(realised, "integer program")
        if incumbent.gap <= gap:
            return True
        _polish(graph, incumbent, search, realised)
        if incumbent.gap <= gap:
            return True
        finer = stages
        if realised is not None and answer.values is not None:
            finer = _refined(graph, incumbent, program, answer.values, realised)
        stalled = finer == stages
        if stalled:
            if answer.outcome == Outcome.OPTIMAL:
                if share + 1 == len(SHARES):
                    return True
                share += 1
                free = free_tensors(graph, incumbent.room, SHARES[share])
            continue
        stages = finer
    return True


def _round_limit(incumbent: Incumbent, stalled: bool) -> float:
    """Seconds for one integer program: a good part of what is left, all of it at the last cut."""
    remaining = incumbent.control.remaining
    if stalled:
        return remaining
    return min(remaining, max(5.0, 0.4 * remaining))


def _polish(graph: Graph, incumbent: Incumbent, search: Search, realised: Found | None) -> None:
    """Local search from the realised schedule, then from the best one if that is another."""
    moves = max(1000, min(POLISH_WORK // max(1, len(graph.ops)), 100 * len(search.movable)))
    for start in (realised, incumbent.in_order):
        if start is None or incumbent.control.over:
            continue
        _, found = search.improve(
            search.rule_of(start.computes), incumbent.room, control=incumbent.control,
            seconds=5.0, moves=moves, heat=1e-4,
        )  # fmt: skip
        incumbent.offer(found, "local search")
        if realised is incumbent.in_order:
            return


def _refined(
    graph: Graph,
    incumbent: Incumbent,
    program: StagedProgram,
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
    realised: Found,
) -> tuple[Stage, ...]:
    """Split where the realised schedule is above the budget or dearer than the program thought."""
    stages = program.stages
    finer = stages
    if realised.peak > incumbent.room:
        peaks = _Peaks(graph, realised)
        first = peaks.worst(stages, incumbent.room)
        if first is not None:
            finer = first.cut(finer)
            peaks.forget_around(first.op, max(4, len(graph.ops) // 20))
            second = peaks.worst(finer, incumbent.room)
            if second is not None:
                finer = second.cut(finer)
    if finer != stages:
        return finer
    planned = program.recompute_ns(values)
    extra, ops = _recomputed_per_stage(graph, realised, stages)
    order = sorted(range(len(stages)), key=lambda k: planned[k] - extra[k])
    for k in order:
        if not stages[k].exact and extra[k] > planned[k] and stages[k].first < stages[k].last:
            return split_at(stages, ops[k])
    return stages


@dataclass(frozen=True)
class _Slot:
    """A place above the budget: a base op, or the recomputations before it."""

    op: int
    before: bool

    def cut(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The end of a stage bounds memory during its last op; recomputations need an exact one."""
        return split_at(stages, self.op) if self.before else cut_after(stages, self.op)


class _Peaks:
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

    def worst(self, stages: tuple[Stage, ...], limit: int) -> _Slot | None:
        """The highest peak above `limit` bytes that the cut does not follow exactly yet."""
        for stage in stages:
            self.during[stage.last] = 0
            if stage.exact:
                self.before[stage.first] = 0
        slots = [
            (int(peaks.max()), _Slot(int(peaks.argmax()), before))
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
