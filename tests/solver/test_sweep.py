"""Sweeps: curves that never rise with the budget, whatever the solves behind them found."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import linear_chain
from lowtide.solver import sweep as module
from lowtide.solver.check import check
from lowtide.solver.compare import compare
from lowtide.solver.comparison import Row
from lowtide.solver.errors import InfeasibleError, InputError, NoPlanError
from lowtide.solver.plan import Plan, Status, Stop
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve
from lowtide.solver.sweep import Curve, agree, sweep
from tests.plans import plan_of, recomputing
from tests.solver.strategies import graphs

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph

GRAPH = linear_chain(8)
SCHEDULE = recomputing(GRAPH)
BUDGETS = ["45%", "60%", "75%", "90%", "max"]


def assert_monotone(graph: Graph, rows: tuple[Row, ...] | list[Row]) -> None:
    """Plans are valid; a larger budget never has more time, a lower peak or a higher bound."""
    ordered = sorted(rows, key=lambda row: row.budget_bytes)
    for row in ordered:
        if row.plan is not None:
            check(graph, row.plan)
            assert row.plan.budget_bytes == row.budget_bytes
            assert row.plan.lower_bound_ns <= row.plan.time_ns
    for small, large in pairwise(ordered):
        if small.plan is not None:
            assert large.plan is not None
            assert large.plan.time_ns <= small.plan.time_ns
            assert large.plan.peak_bytes >= small.plan.peak_bytes
            assert base_order_bound(large.plan) <= base_order_bound(small.plan)


def base_order_bound(plan: Plan) -> int:
    """The bound in ns for the base order, which plans that beat it name beside their own."""
    return plan.lower_bound_ns if plan.base_order_bound_ns < 0 else plan.base_order_bound_ns


@given(graph=graphs(max_ops=6), seed=st.integers(0, 3), tiny=st.booleans())
@settings(max_examples=12, deadline=None)
def test_curves_of_random_graphs_never_rise(graph: Graph, seed: int, tiny: bool) -> None:
    """With time for proofs or without any; and as fast as solves on their own, given time."""
    limit = 1e-3 if tiny else 20.0
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    budgets = [max(1, peak * percent // 100) for percent in (30, 50, 70, 85, 100)]
    found = sweep(graph, budgets, time_limit=limit, seed=seed)
    assert [row.budget_bytes for row in found.rows] == budgets
    assert_monotone(graph, found.rows)
    if not tiny:
        for row in found.rows:
            try:
                alone = solve(graph, row.budget_bytes, time_limit=limit, seed=seed)
            except InfeasibleError:
                assert row.plan is None
            else:
                assert row.plan is not None
                assert row.plan.time_ns <= alone.time_ns * (1 + 2e-4)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_one_budget_finds_is_told_to_all_it_holds_for(data: st.DataObject) -> None:
    """Any plans and any bounds at any budgets give a curve that never rises."""
    amounts = sorted(data.draw(st.sets(st.integers(1, 50), min_size=1, max_size=8)))
    curve = Curve(GRAPH, amounts, 1e-4)
    for _ in range(data.draw(st.integers(0, 12))):
        value = data.draw(st.integers(1, 100))
        if data.draw(st.booleans()):
            peak = data.draw(st.integers(1, 55))
            curve.offer(plan_of(GRAPH, SCHEDULE, time_ns=value, peak_bytes=peak))
        else:
            curve.raise_bound(data.draw(st.sampled_from(amounts)), value)
    for small, large in pairwise(curve.points):
        assert large.bound_ns <= small.bound_ns
        if small.plan is not None:
            assert large.plan is not None
            assert large.plan.time_ns <= small.plan.time_ns
            assert large.plan.peak_bytes >= small.plan.peak_bytes
            assert large.plan.peak_bytes <= large.budget_bytes


def stand_in(monkeypatch: pytest.MonkeyPatch, *outcomes: Plan | BaseException) -> list[Any]:
    """Replace the solver by one that returns or raises each of `outcomes` in turn."""
    left, calls, states = list(outcomes), [], []

    def stand_in_solve(graph: Graph, budget: int, **options: Any) -> Plan:
        calls.append((budget, options["start"], options["lower_bound_ns"]))
        states.append(options["refinement"])
        assert states[0] is states[-1]  # every solve goes on where the one before it ended
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(module, "solve", stand_in_solve)
    return calls


def test_a_later_solve_improves_an_earlier_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the smaller budget replaces the worse one of the larger, bounds go down."""
    base = sum(op.time_ns for op in GRAPH.ops)
    slow, fast = recomputing(GRAPH, every=4), recomputing(GRAPH, every=2)
    assert simulate(GRAPH, fast).time_ns < simulate(GRAPH, slow).time_ns
    calls = stand_in(
        monkeypatch,
        plan_of(GRAPH, slow, lower_bound_ns=base + 1, stopped_by=Stop.TIME_LIMIT),
        plan_of(GRAPH, fast, lower_bound_ns=base, stopped_by=Stop.TIME_LIMIT),
    )
    peak = simulate(GRAPH, fast).peak_bytes
    more = max(peak, simulate(GRAPH, slow).peak_bytes) + 10
    small, large = sweep(GRAPH, [peak, more], gap=0.0).rows
    assert small.plan is not None
    assert large.plan is not None
    assert small.plan.steps == large.plan.steps == plan_of(GRAPH, fast).steps
    assert (small.plan.budget_bytes, large.plan.budget_bytes) == (peak, more)
    assert small.plan.lower_bound_ns == large.plan.lower_bound_ns == base + 1
    assert [budget for budget, _, _ in calls] == [more, peak]
    assert calls[0][1] is None
    assert calls[1][1].steps == plan_of(GRAPH, slow).steps
    assert calls[1][2] == base + 1


def test_settled_budgets_are_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that fits a smaller budget too, at its bound, settles both."""
    schedule = recomputing(GRAPH)
    time = simulate(GRAPH, schedule).time_ns
    calls = stand_in(
        monkeypatch, plan_of(GRAPH, schedule, status=Status.OPTIMAL, lower_bound_ns=time)
    )
    peak = simulate(GRAPH, schedule).peak_bytes
    rows = sweep(GRAPH, [peak, peak + 5]).rows
    assert len(calls) == 1
    assert [row.status for row in rows] == ["optimal", "optimal"]


def test_an_impossible_budget_settles_the_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no plan exists, none is sought at smaller budgets; the rows say why."""
    error = InfeasibleError("too small", smallest_bytes=9, proven=True)
    schedule = recomputing(GRAPH)
    peak = simulate(GRAPH, schedule).peak_bytes
    calls = stand_in(monkeypatch, plan_of(GRAPH, schedule), error)
    rows = sweep(GRAPH, [1, 2, peak]).rows
    assert [budget for budget, _, _ in calls] == [peak, 2]
    assert [row.plan is None for row in rows] == [True, True, False]
    assert {row.reason for row in rows[:2]} == {str(error)}


def test_a_budget_missed_in_time_leaves_the_smaller_ones_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That time passed without a plan is no reason not to look at smaller budgets."""
    schedule = recomputing(GRAPH)
    peak = simulate(GRAPH, schedule).peak_bytes
    plan = plan_of(GRAPH, schedule)
    calls = stand_in(monkeypatch, plan, NoPlanError("not yet"), NoPlanError("nor now"))
    rows = sweep(GRAPH, [1, 2, peak]).rows
    assert [budget for budget, _, _ in calls] == [peak, 2, 1]
    assert [row.reason for row in rows[:2]] == ["nor now", "not yet"]


def test_ctrl_c_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets that no solve has looked at are left out; with no plan at all Ctrl-C is raised."""
    schedule = recomputing(GRAPH)
    peak = simulate(GRAPH, schedule).peak_bytes
    stand_in(monkeypatch, plan_of(GRAPH, schedule), KeyboardInterrupt())
    found = sweep(GRAPH, [1, 2, peak])
    assert found.interrupted
    assert [row.budget_bytes for row in found.rows] == [peak]
    stand_in(monkeypatch, plan_of(GRAPH, schedule, stopped_by=Stop.INTERRUPTED))
    assert sweep(GRAPH, [1, 2, peak]).interrupted
    stand_in(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        sweep(GRAPH, [1, 2, peak])


def test_budgets_as_a_range_or_a_number() -> None:
    """A range is spelt out; a number spreads budgets from the smallest found to the peak."""
    assert [row.budget for row in sweep(GRAPH, "60%..100%:3").rows] == ["60%", "80%", "100%"]
    rows = sweep(GRAPH, 4, time_limit=5).rows
    assert len(rows) == 4
    assert all(row.plan is not None for row in rows)
    peak = simulate(GRAPH, Schedule.keep_everything(GRAPH)).peak_bytes
    assert rows[-1].budget_bytes == peak
    for wrong in ([], "", 0, "60%..x:3", ["often"]):
        with pytest.raises(InputError):
            sweep(GRAPH, wrong)


def test_comparison_sweeps_the_budgets_of_auto() -> None:
    """The curve of `auto` in a comparison never rises, in one process or in several."""
    for jobs in (1, 2):
        found = compare(GRAPH, BUDGETS, ["greedy", "auto"], time_limit=5, jobs=jobs)
        assert [row.method for row in found.rows] == ["greedy", "auto"] * len(BUDGETS)
        assert_monotone(GRAPH, [row for row in found.rows if row.method == "auto"])


def test_independent_rows_agree_afterwards() -> None:
    """A missed budget takes the plan of a smaller one, a slower plan is replaced."""
    base = compare(GRAPH, ["60%"], ["auto"]).rows[0]
    assert base.plan is not None
    peak = base.plan.peak_bytes
    slow = plan_of(GRAPH, recomputing(GRAPH, every=4))
    larger = max(slow.peak_bytes, peak + 1)
    rows = [
        base,
        Row("auto", "a", larger, "feasible", slow, 1.0),
        Row("auto", "b", larger + 1, "no plan in time", None, 2.0),
    ]
    agreed = agree(GRAPH, rows, 1e-4)
    assert agreed[0] is base
    assert [row.budget for row in agreed] == ["60%", "a", "b"]
    assert_monotone(GRAPH, agreed)
    assert all(row.plan is not None for row in agreed)


def test_only_proofs_speak_of_smaller_budgets() -> None:
    """A budget without a plan in time says nothing of smaller ones; one that is impossible does."""
    curve = Curve(GRAPH, [10, 20, 30], 1e-4)
    curve.miss(curve.at(30), NoPlanError("out of time"), 1.0)
    curve.miss(curve.at(30), InfeasibleError("none found", proven=False), 1.0)
    assert not curve.settled(curve.at(20))
    curve.miss(curve.at(20), InfeasibleError("none exists", proven=True), 1.0)
    assert curve.settled(curve.at(10))


def test_ctrl_c_at_an_impossible_budget_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag that Ctrl-C sets is shared by all solves, whatever one of them ends with."""
    tried: list[int] = []

    def interrupted_solve(graph: Graph, budget: int, **options: Any) -> Plan:
        tried.append(budget)
        options["interrupt"].set()
        raise InfeasibleError("none", proven=True)

    monkeypatch.setattr(module, "solve", interrupted_solve)
    found = sweep(GRAPH, ["1", "2", "3"])
    assert found.interrupted
    assert len(tried) == 1
