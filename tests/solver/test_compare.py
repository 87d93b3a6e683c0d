"""Comparisons: one row for each method and budget, with or without a plan."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.frontends.chains import linear_chain
from lowtide.solver import compare as module
from lowtide.solver.baselines import NotApplicableError
from lowtide.solver.check import check
from lowtide.solver.compare import Row, compare, resolve_methods
from lowtide.solver.errors import InfeasibleError, InputError, NoPlanError
from lowtide.solver.plan import Plan, Status, Stop
from lowtide.solver.solve import METHODS
from tests.plans import plan_of, recomputing

GRAPH = linear_chain(8)
FAST = ("keep_everything", "sqrt_n", "greedy")


def test_rows_come_in_the_order_asked_for() -> None:
    """Budgets are the outer loop, methods the inner; every plan passes the checker."""
    seen: list[tuple[Row, int]] = []
    found = compare(GRAPH, ["80%", "max"], FAST, on_row=lambda row, n: seen.append((row, n)))
    assert [(row.budget, row.method) for row in found.rows] == [
        (budget, method) for budget in ("80%", "max") for method in FAST
    ]
    assert seen == [(row, 6) for row in found.rows]
    assert found.graph_hash == GRAPH.structure_hash
    assert found.base_time_ns == sum(op.time_ns for op in GRAPH.ops)
    for row in found.rows:
        if row.plan is not None:
            check(GRAPH, row.plan)
            assert row.peak_bytes is not None
            assert row.peak_bytes <= row.budget_bytes
            assert row.overhead == row.plan.overhead


def test_budget_that_a_method_misses_is_a_row() -> None:
    """Keeping everything misses 50%: no plan, the peak it has, and the reason."""
    (row,) = compare(GRAPH, ["50%"], ["keep_everything"]).rows
    assert row.status == "infeasible"
    assert row.plan is None
    assert (row.overhead, row.bound, row.gap, row.peak_bytes) == (None, None, None, None)
    assert row.smallest_bytes == compare(GRAPH, ["max"], ["keep_everything"]).base_peak_bytes
    assert row.reason
    assert not row.proven


def test_methods_can_run_at_the_same_time() -> None:
    """Two jobs give the rows of one, in the same order."""
    one = compare(GRAPH, ["70%", "90%"], ["sqrt_n", "greedy"])
    two = compare(GRAPH, ["70%", "90%"], ["sqrt_n", "greedy"], jobs=2)
    assert [row.method for row in two.rows] == [row.method for row in one.rows]
    for a, b in zip(one.rows, two.rows, strict=True):
        assert (a.status, a.budget_bytes, a.overhead) == (b.status, b.budget_bytes, b.overhead)
        assert (a.plan is None) == (b.plan is None)
        if a.plan is not None and b.plan is not None:
            assert a.plan.steps == b.plan.steps


def stand_in(monkeypatch: pytest.MonkeyPatch, *outcomes: Plan | BaseException) -> None:
    """Replace the solver by one that returns or raises each of `outcomes` in turn."""
    left = list(outcomes)

    def solve(*_: Any, **__: Any) -> Plan:
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(module, "solve", solve)


def test_every_outcome_of_a_solve_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infeasible, out of time, not applicable, proven and time-limited rows carry what is known."""
    base = sum(op.time_ns for op in GRAPH.ops)
    schedule = recomputing(GRAPH)
    limited = plan_of(GRAPH, schedule, stopped_by=Stop.TIME_LIMIT, lower_bound_ns=-1)
    stand_in(
        monkeypatch,
        InfeasibleError("too small", smallest_bytes=7, limiting_op="op", proven=True),
        NoPlanError("nothing yet"),
        NotApplicableError("no blocks"),
        plan_of(GRAPH, schedule, status=Status.OPTIMAL, lower_bound_ns=base + base // 10),
        limited,
    )
    methods = ("auto", "milp", "per_block", "sqrt_n", "greedy")
    rows = compare(GRAPH, ["60%"], methods, time_limit=3).rows
    assert [row.status for row in rows] == [
        "infeasible", "no plan in time", "not applicable", "optimal", "feasible",
    ]  # fmt: skip
    assert (rows[0].smallest_bytes, rows[0].limiting_op, rows[0].proven) == (7, "op", True)
    assert rows[1].seconds == 3
    assert [row.reason for row in rows[1:]] == ["nothing yet", "no blocks", "", "time limit"]
    assert rows[3].bound == pytest.approx(0.1, abs=1e-6)
    assert rows[4].bound is rows[4].gap is None


def test_ctrl_c_keeps_the_rows_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted plan is the last row; a raised Ctrl-C drops the row under way."""
    done = plan_of(GRAPH, recomputing(GRAPH))
    cut = plan_of(GRAPH, recomputing(GRAPH), stopped_by=Stop.INTERRUPTED)
    stand_in(monkeypatch, done, cut)
    found = compare(GRAPH, ["60%"], ["auto", "milp", "greedy"])
    assert found.interrupted
    assert [row.method for row in found.rows] == ["auto", "milp"]
    stand_in(monkeypatch, done, KeyboardInterrupt())
    found = compare(GRAPH, ["60%"], ["auto", "milp", "greedy"])
    assert found.interrupted
    assert [row.method for row in found.rows] == ["auto"]
    stand_in(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        compare(GRAPH, ["60%"], ["auto"])


def test_method_names() -> None:
    """`all` is every method, hyphens are underscores, doubles count once, typos get a hint."""
    assert resolve_methods("all") == METHODS
    assert resolve_methods(" sqrt-n, greedy ,sqrt_n") == ("sqrt_n", "greedy")
    assert resolve_methods(["log_n"]) == ("log_n",)
    with pytest.raises(InputError, match="did you mean greedy"):
        resolve_methods("gredy")
    with pytest.raises(InputError, match="choose from auto"):
        resolve_methods("zzz")


def test_bad_arguments() -> None:
    """No budget, an unreadable budget and no jobs are errors before any solve."""
    with pytest.raises(InputError, match="at least one"):
        compare(GRAPH, [], FAST)
    with pytest.raises(InputError, match="'often'"):
        compare(GRAPH, ["often"], FAST)
    with pytest.raises(InputError, match="jobs"):
        compare(GRAPH, ["50%"], FAST, jobs=0)
