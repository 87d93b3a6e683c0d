"""Techniques: leaving one out changes how fast a plan is found, never what is proven of it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from lowtide.frontends.generated import random_graph
from lowtide.solver.check import check
from lowtide.solver.options import EVERYTHING
from lowtide.solver.plan import Status
from lowtide.solver.solve import solve

GRAPH = random_graph(7, 30)
NAMES = [field.name for field in fields(EVERYTHING)]


@pytest.mark.parametrize("name", NAMES)
def test_every_technique_can_be_left_out(name: str) -> None:
    """Without it the same optimum is proven, in base order."""
    whole = solve(GRAPH, "75%", time_limit=20, order="base", gap=1e-3)
    plan = solve(
        GRAPH, "75%", time_limit=20, order="base", gap=1e-3,
        techniques=replace(EVERYTHING, **{name: False}),
    )  # fmt: skip
    check(GRAPH, plan)
    assert whole.status == plan.status == Status.OPTIMAL
    assert plan.lower_bound_ns <= whole.time_ns
    assert whole.lower_bound_ns <= plan.time_ns
