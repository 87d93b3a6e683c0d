"""Cuts, memory rows, fixing and starts of staged programs: nothing that is possible is cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.generated import random_graph
from lowtide.solver.control import Control
from lowtide.solver.milp.highs import Highs, quiet_solver
from lowtide.solver.milp.problem import INF, Effort, Outcome
from lowtide.solver.milp.root import strengthen
from lowtide.solver.milp.staged import build
from lowtide.solver.milp.stages import cut_after, every_op, free_tensors, split_at, whole
from lowtide.solver.milp.starts import start_values
from lowtide.solver.options import Techniques
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve
from tests.solver.strategies import graphs, schedules

if TYPE_CHECKING:
    from pathlib import Path

    import highspy

    from lowtide.solver.graph import Graph
    from lowtide.solver.milp.stages import Stage


@st.composite
def cuts(draw: st.DrawFn, graph: Graph) -> tuple[Stage, ...]:
    """Any cut into coarse and exact stages."""
    stages = whole(graph)
    for _ in range(draw(st.integers(0, 5))):
        op = draw(st.integers(0, len(graph.ops) - 1))
        stages = split_at(stages, op) if draw(st.booleans()) else cut_after(stages, op)
    return stages


def pairs(graph: Graph) -> set[tuple[int, int]]:
    """All rows that exact stages can have."""
    return {(base, op) for base in range(len(graph.ops)) for op in range(base)}


@given(data=st.data(), graph=graphs(max_ops=8), share=st.sampled_from([0.0, 0.1]))
@settings(max_examples=40, deadline=None)
def test_every_schedule_of_the_class_satisfies_the_program(
    data: st.DataObject, graph: Graph, share: float
) -> None:
    """At its own peak as the budget, a schedule satisfies all rows, cuts and fixed columns."""
    computes = data.draw(schedules(graph))
    result = simulate(graph, Schedule.from_computes(graph, computes))
    room = result.peak_bytes - graph.resident_bytes
    free = free_tensors(graph, room, share)
    known = data.draw(st.sampled_from([None, set(), pairs(graph)]))
    program = build(graph, result.peak_bytes, data.draw(cuts(graph)), free, known)
    values = start_values(program, computes)
    assert values is not None
    cost = float(program.problem.cost @ values) + program.offset
    # A coarse stage counts an op once that runs again in it more often.
    assert cost * program.ns_per_unit <= max(1, result.time_ns) * (1 + 1e-9)
    cutoff = data.draw(st.sampled_from([INF, cost + 1e-3 * program.offset + 1.0]))
    root = strengthen(
        program, control=Control(), time_limit=60.0, cutoff=cutoff, techniques=Techniques()
    )
    assert root.outcome == Outcome.OPTIMAL
    final = start_values(program, computes, root.interior)
    if cutoff == INF:
        assert final is not None
    cost = max(1, result.time_ns) / program.ns_per_unit
    assert root.bound <= cost * (1 + 1e-6) + 1e-3
    if final is None:  # only what costs more than the cutoff in the full model may be cut off
        assert cost >= cutoff


@given(data=st.data(), graph=graphs(max_ops=8))
@settings(max_examples=60, deadline=None)
def test_rows_made_one_by_one_say_what_all_of_them_say(data: st.DataObject, graph: Graph) -> None:
    """Below the peak of a schedule, both forms of exact stages refuse it or neither does."""
    computes = data.draw(schedules(graph))
    peak = simulate(graph, Schedule.from_computes(graph, computes)).peak_bytes
    budget = graph.resident_bytes + data.draw(st.integers(1, max(1, peak - graph.resident_bytes)))
    free = free_tensors(graph, budget - graph.resident_bytes, 0.0)
    stages = data.draw(cuts(graph))
    full = start_values(build(graph, budget, stages, free), computes)
    rows = start_values(build(graph, budget, stages, free, pairs(graph)), computes)
    assert (full is None) == (rows is None)
    program = build(graph, budget, stages, free, set())
    values = start_values(program, computes)
    if values is not None:  # the ends of the stages fit
        assert program.events is not None
        assert bool(program.events.broken(values)) == (full is None)


@pytest.mark.parametrize("seed", [1, 3, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_that_solutions_break_lead_to_the_optimum(seed: int) -> None:
    """Rounds of integer programs end at the optimum of the full staged program."""
    graph = random_graph(seed, 18, training=True)
    base = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    plan = solve(graph, int(0.8 * base), method="milp", gap=1e-6)
    free = free_tensors(graph, plan.budget_bytes - graph.resident_bytes, 0.0)
    known: set[tuple[int, int]] = set()
    while True:
        program = build(graph, plan.budget_bytes, every_op(graph), free, known)
        strengthen(program, control=Control(), time_limit=60.0, cutoff=INF, techniques=Techniques())
        answer = Highs().solve(program.problem, Effort(Control(), 60.0, 1e-6, threads=1, seed=0))
        assert answer.values is not None
        assert program.events is not None
        assert answer.objective * program.ns_per_unit <= plan.time_ns * (1 + 1e-5)
        broken = program.events.broken(answer.values)
        if not broken:
            break
        known |= broken
    assert answer.objective * program.ns_per_unit == pytest.approx(plan.time_ns, rel=1e-5)


@pytest.mark.parametrize("seed", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_cuts_raise_the_bound_and_stay_below_the_optimum(seed: int) -> None:
    """Root bound without <= with cuts <= optimum of the full staged program."""
    graph = random_graph(seed, 24, training=True)
    base = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    plan = solve(graph, int(0.8 * base), method="milp", gap=1e-6)
    free = free_tensors(graph, plan.budget_bytes - graph.resident_bytes, 0.0)
    third = len(graph.ops) // 3
    stages = split_at(cut_after(whole(graph), third), 2 * third)
    bounds = []
    for on in (False, True):
        program = build(graph, plan.budget_bytes, stages, free)
        techniques = Techniques(chain_cuts=on, interior_rows=on, fixing=False)
        root = strengthen(
            program, control=Control(), time_limit=60.0, cutoff=INF, techniques=techniques
        )
        bounds.append(program.bound_ns(root.bound))
    assert bounds[0] <= bounds[1] <= plan.time_ns
    assert bounds[1] > simulate(graph, Schedule.keep_everything(graph)).time_ns


def test_fixing_keeps_what_is_better_than_the_cutoff() -> None:
    """With the optimum's cost and a little as the cutoff, columns are fixed and it is found."""
    graph = random_graph(12, 30, training=True)
    base = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    plan = solve(graph, int(0.8 * base), method="milp", gap=1e-6)
    free = free_tensors(graph, plan.budget_bytes - graph.resident_bytes, 0.0)
    program = build(graph, plan.budget_bytes, every_op(graph), free)
    cutoff = plan.time_ns / program.ns_per_unit + 0.01
    root = strengthen(
        program, control=Control(), time_limit=60.0, cutoff=cutoff, techniques=Techniques()
    )
    assert root.fixed > 0
    answer = Highs().solve(
        program.problem, Effort(Control(), 60.0, 1e-6, threads=1, seed=0), cutoff=cutoff
    )
    assert answer.objective * program.ns_per_unit == pytest.approx(plan.time_ns, rel=1e-6)


def test_highs_takes_a_complete_start_and_minds_the_cutoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiGHS says that the start is feasible, answers nothing dearer, and finds nothing below."""
    graph = random_graph(12, 30, training=True)
    base = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    plan = solve(graph, int(0.8 * base), method="milp", gap=1e-6)
    free = free_tensors(graph, plan.budget_bytes - graph.resident_bytes, 0.0)
    program = build(graph, plan.budget_bytes, every_op(graph), free)
    values = start_values(program, plan.schedule.computes())
    assert values is not None
    cost = float(program.problem.cost @ values) + program.offset
    assert cost * program.ns_per_unit == pytest.approx(plan.time_ns)
    log = tmp_path / "highs.log"

    def logging_solver() -> highspy.Highs:
        solver = quiet_solver()
        solver.setOptionValue("output_flag", True)
        solver.setOptionValue("log_to_console", False)
        solver.setOptionValue("log_file", str(log))
        return solver

    with monkeypatch.context() as patch:
        patch.setattr("lowtide.solver.milp.highs.quiet_solver", logging_solver)
        answer = Highs().solve(
            program.problem, Effort(Control(), 60.0, 0.9, threads=1, seed=0), start=values
        )
    assert "MIP start solution is feasible: objective" in log.read_text()
    assert answer.values is not None
    # Presolve makes a dearer point of this very start, which must not be the answer.
    assert answer.objective <= cost + 1e-6
    assert answer.bound <= cost
    none = Highs().solve(
        program.problem, Effort(Control(), 60.0, 0.0, threads=1, seed=0), cutoff=cost - 1.0
    )
    assert none.outcome == Outcome.INFEASIBLE or none.objective >= cost - 1.0


def test_starts_outside_the_class_are_refused() -> None:
    """A schedule above the budget is no solution."""
    graph = random_graph(12, 30, training=True)
    base = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    budget = int(0.8 * base)
    free = free_tensors(graph, budget - graph.resident_bytes, 0.0)
    program = build(graph, budget, every_op(graph), free)
    assert start_values(program, np.arange(len(graph.ops)).tolist()) is None


def test_building_ends_with_the_time() -> None:
    """Thousands of exact stages take minutes to write down: the limit holds there, too."""
    graph = random_graph(5, 24, training=True)
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    free = free_tensors(graph, peak, 0.0)
    with pytest.raises(TimeoutError):
        build(graph, peak, every_op(graph), free, control=Control(0.0))
