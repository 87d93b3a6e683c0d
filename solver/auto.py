"""The method `auto`: search for schedules on one core, proofs and integer programs on the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .refine import refine
from .search.beside import Beside
from .smallest import single_op_bound, smallest_found

if TYPE_CHECKING:
    from .job import Job
    from .refine import Refinement
    from .search.anneal import Found

FIRST_WORK = 15_000_000  # ops times moves of the search before the first integer program


def auto(job: Job, starts: list[Found], refinement: Refinement) -> bool:
    """Fill `job.incumbent`; False if no schedule in the base order meets the budget.

    With one thread a first part of the sequence search comes before the integer programs, with
    more it runs beside them until they are done, and for some cycles at least. A number of moves
    is always made in full.
    """
    graph, incumbent = job.graph, job.incumbent
    if incumbent.gap <= job.gap:
        return True
    first = incumbent.best or min(starts, key=lambda found: found.peak)
    whole = incumbent.best is not None or _as_small_as_possible(job, 0.5)
    beside = Beside(
        graph, incumbent, job.seed, [first, starts[0]], any_order=job.any_order, moves=job.moves
    )
    # Other orders gain more where no backward phase mirrors the forward one.
    cycles = 1 if graph.boundary < len(graph.ops) or not job.any_order else 3
    if not job.techniques.sequences:
        cycles = 0
    elif job.threads > 1:
        beside.start()
    else:
        beside.run(cycles)
    possible = single_op_bound(graph)[0] <= job.budget_bytes

    def spare() -> bool:
        if cycles == 0 or job.threads > 2:
            return True
        # Where another order is ahead, nothing but the sequence search improves on it.
        return incumbent.best is incumbent.in_order and beside.give_way(cycles)

    inner = replace(job, threads=max(1, job.threads - 1))
    if job.threads > 1 and job.moves is None and job.techniques.long_runs:
        inner = replace(inner, spare=spare)
    try:
        if possible:
            possible = _in_order(inner, starts, refinement)
    finally:
        beside.finish(cycles)
    if incumbent.best is None and not whole:
        _as_small_as_possible(job, 1.0)
    return possible


def _in_order(job: Job, starts: list[Found], refinement: Refinement) -> bool:
    """A short search over keep rules from the best heuristic, then refinement."""
    incumbent, search = job.incumbent, job.search
    first = incumbent.in_order or min(starts, key=lambda found: found.peak)
    _, found = search.improve(
        search.rule_of(first.computes), incumbent.room, control=incumbent.control,
        seconds=0.1 * max(incumbent.control.remaining, 10.0),
        moves=max(2000, min(FIRST_WORK // len(job.graph.ops), 200 * len(search.movable))),
    )  # fmt: skip
    incumbent.offer(found, "local search")
    if incumbent.in_order is None:  # a tight budget: aim at the peak alone
        found = smallest_found(
            job.graph, job.seed, incumbent.control.part(0.4), any_order=False, target=incumbent.room
        )
        incumbent.offer(found, "smallest peak")
    if incumbent.gap <= job.gap:
        return True
    return refine(job, refinement)


def _as_small_as_possible(job: Job, share: float) -> bool:
    """The search that says what the smallest budget is; whether it came to its end.

    What it found for a refusal it finds again: it had less time there, and here, too, nothing runs
    beside it. It ends as soon as the budget is met.
    """
    incumbent = job.incumbent
    control = incumbent.control.part(share)
    found = smallest_found(
        job.graph, job.seed, control, any_order=job.any_order, enough=incumbent.room
    )
    incumbent.offer(found, "smallest peak")
    return not control.over
