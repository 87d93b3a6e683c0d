"""The programs of a refinement: one in each round, and one that goes on beside later rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .milp.problem import INF, Answer, Effort, Outcome
from .milp.root import strengthen
from .milp.running import Running, Solved
from .milp.starts import start_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from .job import Job
    from .milp.staged import StagedProgram

LEAST = 4.0  # seconds for a program
EARLY = 0.15  # of the time that is left, for an early program
ROUGH = 0.15  # an early program is solved to this part of the gap that is left


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


class Programs:
    """Solves linear and integer programs, and raises the bound by what they prove.

    Parameters
    ----------
    job
        What is solved, and how.
    realise
        Called with what a long run found, as soon as it has ended.

    Attributes
    ----------
    long
        The program that goes on beside others, and its run.
    finished
        What it found, until it is taken.
    """

    def __init__(self, job: Job, realise: Callable[[Solved], object]) -> None:
        self.job = job
        self.incumbent = job.incumbent
        self.control = job.incumbent.control
        self.long: tuple[StagedProgram, Running] | None = None
        self.finished: Solved | None = None
        self._realise = realise

    def solve(self, program: StagedProgram, begun: float, *, stalled: bool) -> tuple[Solved, Round]:
        """One round's programs.

        Parameters
        ----------
        program
            The relaxation at the present cut.
        begun
            When the round began, in seconds of the solve.
        stalled
            No finer cut is known: it gets all the time that is left.
        """
        incumbent, techniques, most = self.incumbent, self.job.techniques, self.job.gap
        cutoff = INF
        if incumbent.best is not None:
            aim = incumbent.best.time * (1.0 - 0.9 * most)
            cutoff = aim / program.ns_per_unit
        limit = self._limit(stalled)
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
                done = self._round(program, fixed, root_bound, begun)
                self._raise(program, cutoff)
                return Solved(program, Answer(Outcome.INFEASIBLE, None, INF, INF), cutoff), done
        gap = most / 4
        if techniques.rough and not stalled and incumbent.best is not None:
            left = (incumbent.best.time - incumbent.bound_ns) / incumbent.best.time
            gap = max(gap, ROUGH * left)
        start = None
        use_cutoff = techniques.cutoff
        if techniques.mip_start and not use_cutoff and incumbent.in_order is not None:
            start = start_values(program, incumbent.in_order.computes, interior)
        run = Running(
            self.job.backend, program.problem,
            Effort(self.control, self.control.remaining, gap, self.job.threads, self.job.seed),
            cutoff=cutoff if use_cutoff else INF, start=start,
        )  # fmt: skip
        deadline = self.control.elapsed + limit

        def enough() -> bool:
            self.look()
            late = self.control.elapsed > deadline
            return late or self.finished is not None or self._nothing_left

        if run.wait(enough) or not self._may_go_on():
            answer = run.finish()
            self._raise(program, min(answer.bound, cutoff))
        else:
            self.long = (program, run)
            answer = run.so_far()
        return Solved(program, answer, cutoff), self._round(program, fixed, root_bound, begun)

    def take(self) -> Solved | None:
        """What a long run found, once."""
        solved, self.finished = self.finished, None
        return solved

    def look(self) -> None:
        """Note the answer of a long run that has ended."""
        if self.long is not None and self.long[1].done:
            self.end()

    def wait(self) -> None:
        """Wait for the long run: nothing else is left to do."""
        if self.long is not None:
            self.long[1].wait(lambda: self._nothing_left)
            self.look()

    def end(self) -> None:
        """End the long run, if there is one, and note its answer."""
        if self.long is None:
            return
        program, run = self.long
        self.long = None
        answer = run.finish()
        self._raise(program, min(answer.bound, run.cutoff))
        self.finished = Solved(program, answer, run.cutoff)
        self._realise(self.finished)

    @property
    def _nothing_left(self) -> bool:
        """No time, or no gap."""
        return self.control.over or self.incumbent.gap <= self.job.gap

    def _may_go_on(self) -> bool:
        """Whether a program that takes longer than its round may go on beside the next ones."""
        if self._nothing_left or self.long is not None:
            return False
        return self.job.spare is not None and self.job.spare()

    def _raise(self, program: StagedProgram, bound: float) -> None:
        if math.isfinite(bound):
            note = f"bound, {len(program.stages)} stages"
            self.incumbent.raise_bound(program.bound_ns(bound), note)

    def _round(self, program: StagedProgram, fixed: int, root_bound: float, begun: float) -> Round:
        return Round(
            stages=len(program.stages),
            columns=len(program.builder.cost),
            rows=len(program.builder.row_lower),
            fixed=fixed,
            root_ns=program.bound_ns(root_bound) if math.isfinite(root_bound) else 0,
            bound_ns=self.incumbent.bound_ns,
            seconds=self.control.elapsed - begun,
        )

    def _limit(self, stalled: bool) -> float:
        """Seconds for one program: some of what is left, all of it where no finer cut is known."""
        remaining = self.control.remaining
        if stalled:
            return remaining
        share = EARLY if self.job.techniques.rough else 0.4
        return self.control.allow(max(LEAST, share * remaining))
