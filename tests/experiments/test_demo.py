"""The demonstration's table: what a reader is told of each method."""

from __future__ import annotations

import pytest

from experiments.demo.study import Measured, describe
from lowtide.frontends.chains import linear_chain
from lowtide.solver.comparison import INFEASIBLE, Row
from tests.plans import plan_of, recomputing

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
