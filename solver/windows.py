"""Large neighbourhood search: integer programs around the incumbent.

The refined program without most of its freedom: the decisions about ops outside one or two windows
of the base order stay what they are in the incumbent, in every stage and so in both phases. What is
left is solved in seconds at a much finer cut than the bound needs. Where its schedule breaks the
budget, that cut is refined, and the window is solved again. After Shaw (1998); on schedules also
Danna et al. (2005), where the neighbourhood comes from the relaxation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .milp.problem import Effort, Outcome
from .milp.root import strengthen
from .milp.staged import build
from .milp.starts import start_values
from .slots import overshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from .array_types import Bools, Floats
    from .job import Job
    from .milp.events import Event
    from .milp.interior import Interior
    from .milp.staged import StagedProgram
    from .milp.stages import Stage
    from .search.anneal import Found

SECONDS = 4.0  # of one integer program at most
TRIES = 4  # refinements of the cut for one window
SPLITS = 3
MOST_STAGES = 40
SHARE = 0.25  # of the ops that may run again, in one window


class Windows:
    """Windows around the incumbent of one solve; the same seed gives the same windows.

    Parameters
    ----------
    polish
        Turns a schedule, which may break the budget, into one that does not, or None.
    events
        Rows of exact stages that solutions broke; more are put in.
    """

    def __init__(
        self, job: Job, polish: Callable[[Found], Found | None], events: set[Event]
    ) -> None:
        self.job = job
        self.graph = job.graph
        self.incumbent = job.incumbent
        self.polish = polish
        self.stages: tuple[Stage, ...] = ()
        self.hints: tuple[Stage, ...] = ()
        self.events = events
        self._random = np.random.default_rng(job.seed)
        graph = job.graph
        arrays = graph.arrays
        recomputable = np.flatnonzero((arrays.recompute != 0) & (arrays.time > 0))
        bytes_made = np.add.reduceat(
            np.append(arrays.size[arrays.out_idx], 0), arrays.out_ptr[:-1]
        ) * (arrays.out_ptr[:-1] < arrays.out_ptr[1:])
        border = graph.boundary if 0 < graph.boundary < len(graph.ops) else len(graph.ops)
        able = recomputable[(recomputable < border) & (bytes_made[recomputable] > 0)]
        self._able = able if len(able) else recomputable
        self._failed = 0
        self._more_events = False

    def improve(self, stages: tuple[Stage, ...], free: Bools) -> bool:
        """One window from the incumbent; True if it found something better.

        `hints` is then `stages` split where the solutions of the window broke the budget: what is
        too good to be true within a window is so in the whole program.
        """
        self.hints = stages
        best = self.incumbent.in_order
        if best is None or not len(self._able):
            return False
        if len(self.stages) < len(stages) or len(self.stages) > MOST_STAGES:
            self.stages = stages
        window = self._window()
        for _ in range(TRIES):
            if self.incumbent.control.over:
                return False
            found = self._solve(window, free)
            if found is None:
                break
            self.incumbent.offer(found, "window")
            if self.incumbent.in_order is best:
                self.incumbent.offer(self.polish(found), "window, polished")
            if self.incumbent.in_order is not best:
                self._failed = 0
                return True
            self.hints = overshot(self.graph, self.hints, found, self.incumbent.room, 1)
            finer = overshot(self.graph, self.stages, found, self.incumbent.room, SPLITS)
            if len(finer) > MOST_STAGES or (finer == self.stages and not self._more_events):
                break
            self.stages = finer
        self._failed += 1
        return False

    def _window(self) -> Bools:
        """Ops whose decisions are free: one run of the base order, or two."""
        able = self._able
        # Windows grow while they find nothing.
        share = min(1.0, SHARE * (1.0 + 0.25 * self._failed))
        length = max(2, int(share * len(able)))
        chosen = np.zeros(len(self.graph.ops), dtype=np.bool_)
        parts = int(self._random.integers(1, 3))
        for _ in range(parts):
            part = max(1, length // parts)
            first = int(self._random.integers(0, max(1, len(able) - part + 1)))
            chosen[able[first : first + part]] = True
        return chosen

    def _solve(self, window: Bools, free: Bools) -> Found | None:
        """The schedule of the best solution in the window, if one is better than the incumbent."""
        incumbent, best = self.incumbent, self.incumbent.in_order
        assert best is not None
        known = self.events if self.job.techniques.lazy_rows else None
        program = build(self.graph, self.job.budget_bytes, self.stages, free, known)
        values = start_values(program, best.computes)
        if values is None:  # the incumbent leaves the base order
            return None
        _pin(program, values, window)
        limit = incumbent.control.allow(SECONDS)
        cutoff = (best.time - 0.5) / program.ns_per_unit
        root = strengthen(program, control=incumbent.control, time_limit=limit, cutoff=cutoff,
                          techniques=self.job.techniques)  # fmt: skip
        if root.outcome != Outcome.OPTIMAL or root.bound >= cutoff:
            return None
        if root.interior is not None:
            _pin_own(program, root.interior, best.computes, window)
        effort = Effort(incumbent.control, limit, gap=1e-5, threads=1, seed=self.job.seed)
        answer = self.job.backend.solve(program.problem, effort, cutoff=cutoff)
        if answer.values is None:
            return None
        broken = set() if program.events is None else program.events.broken(answer.values)
        self._more_events = bool(broken)
        self.events |= broken
        firsts = np.array([stage.first for stage in self.stages], dtype=np.int64)
        carried, again = program.carried(answer.values), program.again(answer.values)
        return self.job.search.realise_carried(firsts, carried, again)


def _pin(program: StagedProgram, values: Floats, window: Bools) -> None:
    """Fix S and R of everything that ops outside the window make."""
    builder = program.builder
    producer = program.graph.arrays.producer
    for k in range(1, len(program.stages)):
        for t, column in program.carry[k].items():
            if not window[producer[t]]:
                builder.lower[column] = builder.upper[column] = float(values[column])
        for op, column in program.recompute[k].items():
            if not window[op]:
                builder.lower[column] = builder.upper[column] = float(values[column])


def _pin_own(
    program: StagedProgram, interior: Interior, computes: tuple[int, ...], window: Bools
) -> None:
    """The same for ops that may run again in the stage of their first run."""
    values = start_values(program, computes, interior)
    if values is None:
        return
    for (_, op), column in interior.own.items():
        if not window[op]:
            program.builder.upper[column] = float(values[column])
