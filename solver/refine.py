"""Adaptive stage refinement, the method `auto`.

Most stages of the staged program do not matter: memory binds at a few places. Start with the base
order cut once, between forward and backward. Every cut gives a relaxation, so the optimum of its
integer program is a lower bound; its solution, realised as a schedule and simulated exactly, shows
where the relaxation lies. There the cut is refined: the op becomes an exact stage of its own.
Between rounds the realised schedule is polished by local search, which gives the upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .milp.problem import INF, Answer, Outcome
from .milp.root import strengthen
from .milp.running import Running, Solved
from .milp.staged import build
from .milp.stages import cut_after, free_tensors, merge_at, split_at, whole
from .milp.starts import start_values
from .slots import Peaks, refined, slack_cuts
from .windows import Windows

if TYPE_CHECKING:
    from .job import Job
    from .milp.events import Event
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
LEAST = 4.0  # seconds for a program
EARLY = 0.15  # of the time that is left, for an early program
ROUGH = 0.15  # an early program is solved to this part of the gap that is left


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


@dataclass(frozen=True)
class Round:
    """What one round did, for studies: sizes, bounds in ns, seconds."""

    stages: int
    columns: int
    rows: int
    fixed: int
    root_ns: int
    bound_ns: int
    seconds: float


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
        self.long: tuple[StagedProgram, Running] | None = None
        self.finished: Solved | None = None  # what a long run found
        self.windows = Windows(job, self._near, state.events)
        if not state.stages:
            state.stages = self._first_cut()
        self.free = free_tensors(job.graph, job.incumbent.room, SHARES[state.share])

    def run(self) -> bool:
        try:
            return self._rounds()
        finally:
            self._end_long()

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
                self._wait_for_long()
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
        if self.finished is None:
            if self.long is not None and self._same(self.long[0]):
                return None
            begun = self.control.elapsed
            known = state.events if self.techniques.lazy_rows else None
            program = build(self.graph, self.job.budget_bytes, state.stages, self.free, known)
            answer, cutoff = self._solve(program, begun)
            return Solved(program, answer, cutoff)
        solved, self.finished = self.finished, None
        self.stalled = False
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

    def _solve(self, program: StagedProgram, begun: float) -> tuple[Answer, float]:
        """One round's linear and integer programs; raises the bound. Also returns the cutoff."""
        incumbent, techniques = self.incumbent, self.techniques
        cutoff = INF
        if incumbent.best is not None:
            aim = incumbent.best.time * (1.0 - 0.9 * self.gap)
            cutoff = aim / program.ns_per_unit
        limit = self._limit()
        fixed, root_bound, interior = 0, -INF, None
        if (
            techniques.chain_cuts
            or techniques.interior_rows
            or techniques.lazy_rows
            or techniques.fixing
        ):
            root = strengthen(program, control=self.control, time_limit=limit, cutoff=cutoff,
                              techniques=techniques)  # fmt: skip
            fixed, root_bound, interior = root.fixed, root.bound, root.interior
            self._raise(program, root.bound)
            if root.outcome == Outcome.INFEASIBLE or root.bound >= cutoff:
                self._note(program, fixed, root_bound, begun)
                self._raise(program, cutoff)
                return Answer(Outcome.INFEASIBLE, None, INF, INF), cutoff
        gap = self.gap / 4
        if techniques.rough and not self.stalled and incumbent.best is not None:
            left = (incumbent.best.time - incumbent.bound_ns) / incumbent.best.time
            gap = max(gap, ROUGH * left)
        start = None
        use_cutoff = techniques.cutoff
        if techniques.mip_start and not use_cutoff and incumbent.in_order is not None:
            start = start_values(program, incumbent.in_order.computes, interior)
        run = Running(
            self.job.backend, program.problem, control=self.control, gap=gap,
            threads=self.job.threads, seed=self.job.seed, cutoff=cutoff if use_cutoff else INF,
            start=start,
        )  # fmt: skip
        deadline = self.control.elapsed + limit

        def enough() -> bool:
            self._look_at_long()
            over = self.control.over or self.control.elapsed > deadline
            return over or self.finished is not None or self.incumbent.gap <= self.gap

        if run.wait(enough) or not self._may_go_on():
            answer = run.finish()
            self._raise(program, min(answer.bound, cutoff))
        else:
            self.long = (program, run)
            answer = run.so_far()
        self._note(program, fixed, root_bound, begun)
        return answer, cutoff

    def _may_go_on(self) -> bool:
        """Whether a program that takes longer than its round may go on beside the next ones."""
        if self.control.over or self.incumbent.gap <= self.gap or self.long is not None:
            return False
        return self.job.spare is not None and self.job.spare()

    def _look_at_long(self) -> None:
        """Take the answer of a long run that has ended."""
        if self.long is not None and self.long[1].done:
            self._end_long()

    def _wait_for_long(self) -> None:
        """Nothing else is left to do."""
        if self.long is not None:
            self.long[1].wait(lambda: self.control.over or self.incumbent.gap <= self.gap)
            self._look_at_long()

    def _end_long(self) -> None:
        """End the long run, if there is one, and take its answer."""
        if self.long is None:
            return
        program, run = self.long
        self.long = None
        answer = run.finish()
        self._raise(program, min(answer.bound, run.cutoff))
        self.finished = Solved(program, answer, run.cutoff)
        self._realised(self.finished)

    def _raise(self, program: StagedProgram, bound: float) -> None:
        if math.isfinite(bound):
            note = f"bound, {len(program.stages)} stages"
            self.incumbent.raise_bound(program.bound_ns(bound), note)

    def _note(self, program: StagedProgram, fixed: int, root_bound: float, begun: float) -> None:
        self.state.rounds.append(
            Round(
                stages=len(program.stages),
                columns=len(program.builder.cost),
                rows=len(program.builder.row_lower),
                fixed=fixed,
                root_ns=program.bound_ns(root_bound) if math.isfinite(root_bound) else 0,
                bound_ns=self.incumbent.bound_ns,
                seconds=self.control.elapsed - begun,
            )
        )

    def _limit(self) -> float:
        """Seconds for one program: some of what is left, all of it where no finer cut is known."""
        remaining = self.control.remaining
        if self.stalled:
            return remaining
        return self.control.allow(max(LEAST, (EARLY if self.techniques.rough else 0.4) * remaining))

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
        if self.long is not None:  # the bound is in good hands
            most = MORE_WINDOWS
        for _ in range(most):
            self._look_at_long()
            if self.incumbent.gap <= self.gap or self.control.over or self.finished is not None:
                break
            self.windows.improve(self.state.stages, self.free)
            hints = (*hints, *self.windows.hints)
        return hints
