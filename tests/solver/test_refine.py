"""Refinement: its state carries over, and every technique can be left out."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from lowtide.frontends.generated import random_graph
from lowtide.solver import programs
from lowtide.solver.milp.highs import Highs
from lowtide.solver.milp.stages import Stage, merge_at
from lowtide.solver.options import EVERYTHING, Techniques
from lowtide.solver.plan import Status
from lowtide.solver.refine import Refinement
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve

if TYPE_CHECKING:
    from lowtide.solver.milp.problem import Answer, Effort, Problem

GRAPH = random_graph(12, 30, training=True)
PEAK = simulate(GRAPH, Schedule.keep_everything(GRAPH)).peak_bytes


@pytest.mark.parametrize("name", [field.name for field in fields(Techniques)])
def test_without_any_one_technique_the_optimum_is_the_same(name: str) -> None:
    """Techniques change how long a proof takes, not what is proven."""
    budget = int(0.8 * PEAK)
    expected = solve(GRAPH, budget, method="milp", gap=1e-6)
    without = replace(EVERYTHING, **{name: False})
    plan = solve(GRAPH, budget, order="base", gap=1e-6, techniques=without)
    assert plan.status is Status.OPTIMAL
    assert plan.time_ns == expected.time_ns


def test_state_carries_over_to_a_smaller_budget() -> None:
    """The next budget begins with the cut and the bound of the last, and ends at its optimum."""
    state = Refinement()
    large = solve(GRAPH, int(0.85 * PEAK), order="base", gap=1e-6, refinement=state)
    cut, bound = state.stages, state.bound_ns
    assert 0 < bound <= large.time_ns
    assert state.rounds
    small = solve(GRAPH, int(0.75 * PEAK), order="base", gap=1e-6, refinement=state)
    alone = solve(GRAPH, int(0.75 * PEAK), order="base", gap=1e-6)
    assert small.time_ns == alone.time_ns
    assert len(state.stages) >= len(cut)
    assert state.bound_ns >= bound


def test_merging_takes_out_one_cut_between_coarse_stages() -> None:
    """Exact stages keep their cuts; other cuts than the named one stay."""
    stages = (Stage(0, 3), Stage(4, 6), Stage(7, 7, exact=True), Stage(8, 9))
    assert merge_at(stages, 3) == (Stage(0, 6), Stage(7, 7, exact=True), Stage(8, 9))
    assert merge_at(stages, 6) == stages
    assert merge_at(stages, 5) == stages


def test_programs_that_take_long_go_on_beside_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What outlives its round is not lost: the optimum is proven all the same."""
    quick = Highs.solve
    slow: list[bool] = []
    went_on: list[bool] = []
    may_go_on = programs.Programs._may_go_on

    def solve_slowly(self: Highs, problem: Problem, effort: Effort, **options: Any) -> Answer:
        slow.append(True)
        time.sleep(0.3)
        return quick(self, problem, effort, **options)

    def asked(self: programs.Programs) -> bool:
        went_on.append(may_go_on(self))
        return went_on[-1]

    monkeypatch.setattr(Highs, "solve", solve_slowly)
    monkeypatch.setattr(programs.Programs, "_may_go_on", asked)
    monkeypatch.setattr(programs, "LEAST", 0.05)
    monkeypatch.setattr(programs, "EARLY", 0.0)
    without = replace(EVERYTHING, sequences=False, windows=False)
    budget = int(0.8 * PEAK)
    expected = solve(GRAPH, budget, order="base", gap=1e-6, threads=1)
    assert not any(went_on)
    plan = solve(GRAPH, budget, order="base", gap=1e-6, threads=2, techniques=without)
    assert slow
    assert any(went_on)
    assert plan.status is Status.OPTIMAL
    assert plan.time_ns == expected.time_ns
