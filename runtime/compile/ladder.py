"""Which plan a budget gets: the first on a ladder of plans, the same for every budget, that fits.

What a compiler makes of a plan takes more or less than predicted, now more, now less, so the peak
of its program does not fall with the budget that the plan was made for. It still has to fall with
the budget that the user gives, though every call knows only its own.

First come splits of PyTorch's own that recompute nothing but what is fused into kernels (`own.py`),
and the plan without recomputation: where one of them fits there is nothing to gain by recomputing
more, and their programs are not slower than PyTorch's own, since they are PyTorch's own.

The rungs are budgets in equal steps, from the peak without recomputation down to what one op needs,
and the peaks of plans that save what PyTorch's other splits save. The plan for each is one and the
same whatever the user's budget is, no slower than those plans of PyTorch's values that fit; its
program is followed. Taken is the first from the top whose program is within the user's budget. A
smaller budget takes the same one, or, where that is above it, one further down that is not: the
peak never rises. Plans further down are no faster, so the predicted time never falls, as far as the
solver found the fastest. And where a budget is refused, all smaller ones are, while the peak that
the refusal names is not.

A program far below its rung is passed over, for every budget. So rungs far above the user's budget
need no look: their programs are above it or passed over. Of what comes first, that which saves more
than the budget needs none.

Where the program that is found leaves much of the budget, plans for a few budgets between its rung
and the next one are followed as well, and the fitting one with the largest peak is taken. That is
monotone, too: the peak of the rung's own program, which the taken one has at least, is above every
budget that has to go further down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .own import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...solver.plan import Plan
    from .own import Choice

RUNGS = 40
BETWEEN = 3  # budgets between two rungs
NEAR_PERCENT = 95  # of the user's budget: a program that takes as much needs no better one
LEAST_PERCENT = 92  # of a rung: programs below are passed over; measured ones are 93% to 125%


class Candidate(NamedTuple):
    """How to split, and the peak of the program that the compiler makes of it, in bytes."""

    choice: Choice
    peak_bytes: int

    @property
    def plan(self) -> Plan:
        """The plan of the split."""
        return plan_of(self.choice)


def rungs(top_bytes: int, floor_bytes: int, known: Iterable[int] = ()) -> list[int]:
    """Budgets below the peak without recomputation, the largest first; `known` peaks among them."""
    span = max(0, top_bytes - floor_bytes)
    found = {top_bytes - span * step // RUNGS for step in range(1, RUNGS + 1)} if span else set()
    found.update(peak for peak in known if peak >= floor_bytes)
    return sorted((budget for budget in found if budget < top_bytes), reverse=True)


def climb_down(
    first: Iterable[Candidate],
    top: Plan,
    rungs: Sequence[int],
    budget_bytes: int,
    probe: Callable[[int, Plan], Candidate | None],
) -> list[Candidate]:
    """The candidates that a budget looks at; the last one fits, or none does.

    Parameters
    ----------
    first
        What comes before the rungs; those that cannot fit may be left out.
    top
        The plan without recomputation.
    rungs
        Budgets of plans, from large to small.
    budget_bytes
        The user's. Nothing else here may depend on it.
    probe
        Makes the candidate of a rung, which begins with the plan of the last one; None ends the
        ladder. It may be of a budget above the rung if there is none for less.
    """
    seen = []
    for one in first:
        seen.append(one)
        if one.peak_bytes <= budget_bytes:
            return seen
    before, above = len(seen), top
    for place, rung in enumerate(rungs):
        if LEAST_PERCENT * rung > 100 * budget_bytes:
            continue
        start = above
        found = probe(rung, start)
        if found is None:
            break
        above = found.plan
        if 100 * found.peak_bytes < LEAST_PERCENT * rung:
            continue
        seen.append(found)
        if found.plan.budget_bytes > rung:
            break
        if found.peak_bytes <= budget_bytes:
            if 100 * found.peak_bytes < NEAR_PERCENT * budget_bytes:
                higher = rungs[place - 1] if place else top.budget_bytes
                seen += _between(higher, found, start, budget_bytes, probe)
            break
    if len(seen) == before and rungs:  # all are above the budget: what is the smallest peak?
        seen += _smallest(top, rungs, probe)
    return seen


def _smallest(
    top: Plan,
    rungs: Sequence[int],
    probe: Callable[[int, Plan], Candidate | None],
) -> list[Candidate]:
    """Candidates from far down, by bisection: what a refusal may name."""
    found = []
    low, high = 0, len(rungs)  # rungs from `high` on give nothing
    place = len(rungs) - 1
    while low < high:
        one = probe(rungs[place], top)
        if one is None:
            high = place
        else:
            # One that is passed over is not met by the budget that would be named for it.
            if 100 * one.peak_bytes >= LEAST_PERCENT * rungs[place]:
                found.append(one)
            low = place + 1
        place = (low + high) // 2
    return found


def _between(
    higher: int,
    lower: Candidate,
    start: Plan,
    budget_bytes: int,
    probe: Callable[[int, Plan], Candidate | None],
) -> list[Candidate]:
    """Candidates between two rungs, the one to take last; none if that is the lower rung's."""
    best, rung = lower, lower.plan.budget_bytes
    found = []
    for part in range(1, BETWEEN + 1):
        target = higher - (higher - rung) * part // (BETWEEN + 1)
        if not rung < target < min(higher, start.budget_bytes):
            continue
        one = probe(target, start)
        if one is None or one.plan.budget_bytes > target:
            continue
        found.append(one)
        start = one.plan
        if best.peak_bytes < one.peak_bytes <= budget_bytes:
            best = one
    return [*(one for one in found if one is not best), best] if best in found else []
