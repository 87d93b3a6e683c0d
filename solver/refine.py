"""Adaptive stage refinement, the method `auto`.

Most stages of the staged program do not matter: memory binds at a few places. Start with the base
order cut once, between forward and backward. Every cut gives a relaxation, so the optimum of its
integer program is a lower bound; its solution, realised as a schedule and simulated exactly, shows
where the relaxation lies. There the cut is refined: the op becomes an exact stage of its own.
Between rounds the realised schedule is polished by local search, which gives the upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .milp.problem import INF, Outcome
from .milp.staged import build
from .milp.stages import cut_after, free_tensors, merge_at, split_at, whole
from .programs import Programs, Round
from .slots import Peaks, refined, slack_cuts
from .windows import Windows

if TYPE_CHECKING:
    from .job import Job
    from .milp.events import Event
    from .milp.running import Solved
    from .milp.staged import StagedProgram
    from .milp.stages import Stage
    from .search.anneal import Found

# Share of the budget in small tensors that the program leaves out; refined away if it matters.
SHARES = (1e-4, 0.0)
POLISH_WORK = 2_000_000  # ops times moves of one polish, less than a second
SLACK_ROUNDS = 3  # until a slack cut is taken out
FEW_STAGES = 2  # with fewer, windows are not worth it yet
WINDOWS = 2
MORE_WINDOWS = 10


@dataclass
class Refinement:
    """Where a refinement stands; a later one, for a smaller budget, can go on from there.

    Attributes
    ----------
    stages
        The cut.
    share
        Index into SHARES.
    bound_ns
        Proven for `budget_bytes` and everything below it.
    slack
        Rounds in which the cut after an op had memory to spare; -1: merged before, not again.
    events
        Rows of exact stages that solutions broke.
    """

    stages: tuple[Stage, ...] = ()
    share: int = 0
    bound_ns: int = 0
    budget_bytes: int = -1
    slack: dict[int, int] = field(default_factory=dict)
    events: set[Event] = field(default_factory=set)
    rounds: list[Round] = field(default_factory=list)


def refine(job: Job, state: Refinement) -> bool:
    """Close the gap as far as time allows; False if no schedule of the class meets the budget.

    `state` is read and written: given again with a smaller budget, its cut is where that one
    begins, and its bound holds.
    """
    if state.budget_bytes >= job.budget_bytes:
        job.incumbent.raise_bound(state.bound_ns, "bound of a larger budget")
    possible = _Refine(job, state).run()
    state.bound_ns, state.budget_bytes = job.incumbent.bound_ns, job.budget_bytes
    return possible


class _Refine:
    def __init__(self, job: Job, state: Refinement) -> None:
        self.job = job
        self.graph = job.graph
        self.incumbent = job.incumbent
        self.control = job.incumbent.control
        self.search = job.search
        self.gap = job.gap
        self.techniques = job.techniques
        self.state = state
        self.stalled = False
        self.programs = Programs(job, self._realised)
        self.windows = Windows(job, self._near, state.events)
        if not state.stages:
            state.stages = self._first_cut()
        self.free = free_tensors(job.graph, job.incumbent.room, SHARES[state.share])

    def run(self) -> bool:
        try:
            return self._rounds()
        finally:
            self.programs.end()

    def _rounds(self) -> bool:
        incumbent, state = self.incumbent, self.state
        while not self.control.over:
            solved = self._next()
            realised = None
            broken: set[Event] = set()
            if solved is not None:
                state.stages = solved.program.stages
                if solved.answer.outcome == Outcome.INFEASIBLE and solved.cutoff == INF:
                    return False
                if incumbent.gap <= self.gap:
                    return True
                realised = self._realised(solved)
                if solved.program.events is not None and solved.answer.values is not None:
                    broken = solved.program.events.broken(solved.answer.values)
                    state.events |= broken
            hints: tuple[Stage, ...] = ()
            if self.techniques.polish:
                self._polish(realised)
            if incumbent.gap <= self.gap:
                return True
            if self.techniques.windows and len(state.stages) > FEW_STAGES:
                hints = self._search_windows()
            if incumbent.gap <= self.gap:
                return True
            finer = state.stages
            if solved is not None and realised is not None and solved.answer.values is not None:
                finer = refined(solved.program, solved.answer.values, realised, incumbent.room,
                                several=self.techniques.several)  # fmt: skip
            for stage in hints:
                finer = (
                    split_at(finer, stage.first) if stage.exact else cut_after(finer, stage.last)
                )
            if finer != state.stages:
                if self.techniques.merge and solved is not None:
                    finer = self._merged(solved, finer)
                state.stages, self.stalled = finer, False
            elif broken:
                self.stalled = False
            elif solved is None:
                self.programs.wait()
            elif self.stalled and solved.answer.outcome == Outcome.OPTIMAL:
                if state.share + 1 == len(SHARES):
                    return True
                state.share += 1
                self.free = free_tensors(self.graph, incumbent.room, SHARES[state.share])
            else:
                self.stalled = True
        return True

    def _next(self) -> Solved | None:
        """What a long run found if one ended, else a new round; None if one is at this cut."""
        state = self.state
        solved = self.programs.take()
        if solved is not None:
            self.stalled = False
            return solved
        long = self.programs.long
        if long is not None and self._same(long[0]):
            return None
        begun = self.control.elapsed
        known = state.events if self.techniques.lazy_rows else None
        program = build(self.graph, self.job.budget_bytes, state.stages, self.free, known)
        solved, done = self.programs.solve(program, begun, stalled=self.stalled)
        state.rounds.append(done)
        return solved

    def _same(self, program: StagedProgram) -> bool:
        """Whether the next program would be this one."""
        rows = set() if program.events is None else self.state.events - program.events.done
        return program.stages == self.state.stages and not rows

    def _realised(self, solved: Solved) -> Found | None:
        """The schedule that a solution leads to, offered."""
        program, values = solved.program, solved.answer.values
        if values is None:
            return None
        firsts = np.array([stage.first for stage in program.stages], dtype=np.int64)
        realised = self.search.realise_carried(
            firsts, program.carried(values), program.again(values)
        )
        self.incumbent.offer(realised, "integer program")
        return realised

    def _merged(self, solved: Solved, finer: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """Without cuts that were slack in several rounds; no cut is taken out twice."""
        slack = self.state.slack
        if solved.answer.values is None:
            return finer
        for op in slack_cuts(solved.program, solved.answer.values):
            if slack.get(op, 0) < 0:
                continue
            slack[op] = slack.get(op, 0) + 1
            if slack[op] >= SLACK_ROUNDS:
                finer = merge_at(finer, op)
                slack[op] = -1
        return finer

    def _first_cut(self) -> tuple[Stage, ...]:
        stages = whole(self.graph)
        if len(stages) > 1:
            return stages
        base = self.search.measure(range(len(self.graph.ops)))
        slot = Peaks(self.graph, base).worst(stages, 0)
        return stages if slot is None else slot.cut(stages)

    def _polish(self, realised: Found | None) -> None:
        """Local search from the realised schedule, then from the best one if that is another."""
        search, incumbent = self.search, self.incumbent
        moves = max(1000, min(POLISH_WORK // len(self.graph.ops), 100 * len(search.movable)))
        for start in (realised, incumbent.in_order):
            if start is None or self.control.over:
                continue
            _, found = search.improve(
                search.rule_of(start.computes), incumbent.room, control=self.control,
                seconds=5.0, moves=moves, heat=1e-4,
            )  # fmt: skip
            incumbent.offer(found, "local search")
            if realised is incumbent.in_order:
                return

    def _near(self, found: Found) -> Found | None:
        """A short local search from a schedule of a window."""
        search = self.search
        moves = max(500, min(POLISH_WORK // 2 // len(self.graph.ops), 20 * len(search.movable)))
        return search.improve(
            search.rule_of(found.computes), self.incumbent.room, control=self.control,
            seconds=1.0, moves=moves, heat=3e-5,
        )[1]  # fmt: skip

    def _search_windows(self) -> tuple[Stage, ...]:
        """Windows: some a round, twice as many at a cut that stalls; returns cuts they need."""
        hints: tuple[Stage, ...] = ()
        most = WINDOWS * (2 if self.stalled else 1)
        if self.programs.long is not None:  # the bound is in good hands
            most = MORE_WINDOWS
        for _ in range(most):
            self.programs.look()
            if self.incumbent.gap <= self.gap or self.control.over or self.programs.finished:
                break
            self.windows.improve(self.state.stages, self.free)
            hints = (*hints, *self.windows.hints)
        return hints
