"""The bound in any order: below the optimum on every small graph, and worth something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.solver.control import Control
from lowtide.solver.milp.any_order import any_order_bound
from lowtide.solver.milp.highs import Highs
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve
from tests.solver.brute_force import optimum_any_order
from tests.solver.chains import mirrored_chain
from tests.solver.strategies import graphs

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


@given(graph=graphs(max_ops=6), percent=st.integers(30, 99))
@settings(max_examples=150, deadline=None)
def test_never_above_the_optimum(graph: Graph, percent: int) -> None:
    """bound <= optimum in any order, overwriting ops included."""
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    budget = graph.resident_bytes + (peak - graph.resident_bytes) * percent // 100
    bound = any_order_bound(graph, budget, Highs(), Control(20.0))
    assert bound >= sum(op.time_ns for op in graph.ops)
    best = optimum_any_order(graph, budget)
    assert best is None or bound <= best


def test_worth_most_of_the_optimum() -> None:
    """On a chain with its mirrored backward phase it proves most of the extra time."""
    graph = mirrored_chain(24)
    base = sum(op.time_ns for op in graph.ops)
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    for percent in (80, 60, 40):
        plan = solve(graph, peak * percent // 100, order="base")
        bound = any_order_bound(graph, plan.budget_bytes, Highs(), Control(20.0))
        assert 0.7 * (plan.time_ns - base) <= bound - base <= plan.time_ns - base


def test_without_time_the_base_time() -> None:
    """A bound is always given."""
    graph = mirrored_chain(40)
    base = sum(op.time_ns for op in graph.ops)
    assert any_order_bound(graph, graph.resident_bytes + 8, Highs(), Control(0.0)) == base
