"""The choice among plans whose compiled peaks do not fall with their budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from lowtide.frontends.chains import linear_chain
from lowtide.runtime.compile.ladder import (
    LEAST_PERCENT,
    NEAR_PERCENT,
    RUNGS,
    Candidate,
    climb_down,
    rungs,
)
from lowtide.solver.schedule import Schedule

from ...plans import plan_of

if TYPE_CHECKING:
    from lowtide.solver.plan import Plan

TOP, FLOOR = 10_000, 3_000


class Ladder:
    """Plans whose programs take from 10% less to 25% more than their rungs; none below a rung."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.graph = linear_chain(3)
        self.rungs = rungs(TOP, FLOOR)
        self.last = self.rungs[draw.integers(10, RUNGS)]
        self.smallest = self.last - 20 if seed % 2 else None  # what a refusal names
        self._factors = draw.uniform(0.9, 1.25, TOP)
        self.everything = Candidate(self._plan(TOP), int(TOP * draw.uniform(0.95, 1.1)))
        self.first: list[Candidate] = []  # splits of others
        self.probed: list[int] = []

    def _plan(self, budget: int) -> Plan:
        return plan_of(self.graph, Schedule.keep_everything(self.graph), budget_bytes=budget)

    def peak(self, budget: int) -> int:
        """What the program of the plan for a budget takes."""
        return int(budget * self._factors[budget])

    def probe(self, rung: int, above: Plan) -> Candidate | None:
        """The candidate of a rung."""
        self.probed.append(rung)
        assert above.budget_bytes > rung
        at = rung if rung >= self.last else self.smallest
        return None if at is None else Candidate(self._plan(at), self.peak(at))

    def look(self, budget: int) -> list[Candidate]:
        """What a budget looks at."""
        first = [*self.first, self.everything]
        return climb_down(first, self.everything.plan, self.rungs, budget, self.probe)


def test_rungs_are_even_and_below_the_top() -> None:
    """From just below the peak without recomputation to the floor; none where there is no room."""
    found = rungs(TOP, FLOOR)
    assert len(found) == RUNGS
    assert found[0] < TOP
    assert found[-1] == FLOOR
    assert max(np.diff(found)) < 0
    assert min(np.diff(found)) >= -(TOP - FLOOR) // RUNGS - 1
    assert rungs(TOP, TOP) == rungs(FLOOR, TOP) == []
    assert rungs(TOP, TOP - 3) == [TOP - 1, TOP - 2, TOP - 3]


@pytest.mark.parametrize("seed", range(20))
def test_peaks_fall_with_the_budget(seed: int) -> None:
    """Taken peaks fit, never rise, and no budget is met below one that is refused."""
    ladder = Ladder(seed)
    before: int | None = 2 * TOP
    for budget in range(2 * TOP, FLOOR // 2, -7):
        seen = ladder.look(budget)
        fitting = [one.peak_bytes for one in seen if one.peak_bytes <= budget]
        assert not fitting or seen[-1].peak_bytes == max(fitting)
        now = seen[-1].peak_bytes if seen[-1].peak_bytes <= budget else None
        if now is None:
            least = min(one.peak_bytes for one in seen)
            assert ladder.look(least)[-1].peak_bytes <= least
        else:
            assert before is not None
            assert now <= before
        before = now
    assert before is None


@pytest.mark.parametrize("seed", range(10))
def test_peaks_fall_with_what_comes_before_the_rungs(seed: int) -> None:
    """Splits of others, of any peaks, are taken where they fit; a smaller budget has less still."""
    draw = np.random.default_rng(seed)
    ladder = Ladder(seed)
    peaks = draw.integers(FLOOR, TOP, 3).tolist()
    ladder.first = [Candidate(ladder.everything.plan, peak) for peak in peaks]
    before = 2 * TOP
    for budget in range(2 * TOP, min(*peaks, ladder.last) + 1200, -13):
        now = ladder.look(budget)[-1].peak_bytes
        assert now <= min(before, budget)
        before = now
        fitting = [peak for peak in peaks if peak <= budget]
        assert not fitting or now == fitting[0]


def test_known_peaks_are_rungs() -> None:
    """Peaks of plans that are known stand among the even steps, inside of the ladder only."""
    found = rungs(TOP, FLOOR, [TOP + 1, TOP, 7777, FLOOR - 1])
    assert sorted({*rungs(TOP, FLOOR), 7777}, reverse=True) == found


@pytest.mark.parametrize("seed", range(20))
def test_rungs_far_above_the_budget_need_no_look(seed: int) -> None:
    """Looking at every rung takes the same candidate."""
    ladder = Ladder(seed)
    usable = [ladder.everything]
    for rung in ladder.rungs:
        found = ladder.probe(rung, ladder.everything.plan)
        if found is None:
            break
        if 100 * found.peak_bytes >= LEAST_PERCENT * rung:
            usable.append(found)
        if found.plan.budget_bytes > rung:
            break
    for budget in range(TOP, FLOOR, -97):
        fits = [one for one in usable if one.peak_bytes <= budget]
        ladder.probed.clear()
        last = ladder.look(budget)[-1]
        if fits:
            near = 100 * fits[0].peak_bytes >= NEAR_PERCENT * budget
            assert fits[0].peak_bytes <= last.peak_bytes <= budget
            assert last == fits[0] or not near
        else:
            assert last.peak_bytes > budget
        assert len(ladder.probed) < RUNGS - 5 or budget > 0.9 * TOP


def test_budgets_between_rungs_use_more_of_the_budget() -> None:
    """Less is left over than by the rungs alone, and never more."""
    left, left_by_rungs = [], []
    for seed in range(20):
        ladder = Ladder(seed)
        for budget in range(TOP, FLOOR, -97):
            seen = ladder.look(budget)
            fits = [one.peak_bytes for one in seen if one.peak_bytes <= budget]
            if fits:
                known = {ladder.everything.peak_bytes, *map(ladder.peak, ladder.rungs)}
                by_rungs = [peak for peak in fits if peak in known]
                if by_rungs:  # not where a refusal's budget was taken
                    left.append(budget - seen[-1].peak_bytes)
                    left_by_rungs.append(budget - max(by_rungs))
                    assert left[-1] <= left_by_rungs[-1]
    assert np.mean(left) < np.mean(left_by_rungs)


@pytest.mark.parametrize("seed", range(20))
def test_a_refusal_names_a_small_peak_however_small_the_budget(seed: int) -> None:
    """A budget far below the floor is told what one just below the smallest peak is told, about."""
    ladder = Ladder(seed)
    far = min(one.peak_bytes for one in ladder.look(FLOOR // 20))
    assert ladder.look(far)[-1].peak_bytes <= far
    assert far <= 1.5 * ladder.last
