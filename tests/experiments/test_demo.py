"""The demonstration's table: what a reader is told of each method."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

import lowtide
from experiments.demo.study import Measured, describe, plans_of
from lowtide.frontends.chains import linear_chain
from lowtide.solver.comparison import INFEASIBLE, Row
from tests.plans import plan_of, recomputing

if TYPE_CHECKING:
    from collections.abc import Sequence

GRAPH = linear_chain(8)
PLAN = plan_of(GRAPH, recomputing(GRAPH))


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("auto", "lowtide"),
        ("keep_everything", "keep everything"),
        ("per_block", "checkpoint per block"),
        ("sqrt_n", "sqrt(n)"),
        ("log_n", "log(n)"),
        ("greedy", "greedy"),
    ],
)
def test_methods_are_named_for_readers(method: str, label: str) -> None:
    """With a plan and without one, the table has the words and not the option."""
    found = Row(method, "1", PLAN.budget_bytes, "feasible", PLAN, 1.0)
    missed = Row(method, "1", PLAN.budget_bytes, INFEASIBLE, None, 0.0)
    for row in (Measured(found, PLAN.peak_bytes, 0.1, True), Measured(missed, None, None, None)):
        assert describe(row, 2 * PLAN.budget_bytes, 0)[2] == label


def test_budgets_solved_apart_share_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proven at a larger budget stands in the table at the smaller one."""
    base = PLAN.base_time_ns
    bounds = {PLAN.peak_bytes: base, PLAN.peak_bytes + 1: base + base // 10}

    def compare(
        _: object, budgets: Sequence[str | int], names: Sequence[str], **__: object
    ) -> object:
        if "auto" not in names:
            return SimpleNamespace(rows=())
        amount = int(budgets[0])
        if amount not in bounds:
            return SimpleNamespace(rows=())
        plan = plan_of(
            GRAPH, recomputing(GRAPH), budget_bytes=amount, lower_bound_ns=bounds[amount]
        )
        return SimpleNamespace(rows=[Row("auto", "", amount, "feasible", plan, 1.0)])

    monkeypatch.setattr(lowtide, "compare", compare)
    captured = cast("lowtide.Captured", SimpleNamespace(graph=GRAPH))
    budgets = [str(amount) for amount in reversed(bounds)]
    rows = plans_of(captured, budgets, ["auto"], 1.0, lambda _: None)
    assert [row.bound for row in rows] == [pytest.approx(0.1, abs=1e-6)] * 2
