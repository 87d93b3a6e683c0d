"""What all baselines promise: valid schedules of any graph, and the best one within the budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import linear_chain, random_layered, residual_chain, transformer, unet
from lowtide.frontends.generated import random_graph
from lowtide.solver.baselines import BASELINES, NotApplicableError
from lowtide.solver.baselines.base import crossing_bytes, narrow_positions
from lowtide.solver.check import check
from lowtide.solver.control import Control
from lowtide.solver.graph import Graph
from lowtide.solver.realise import Tables
from lowtide.solver.simulate import Simulation, simulate

from ..strategies import graphs, plan_of

GRAPHS = {
    graph.name: graph
    for graph in (
        linear_chain(24, weight_bytes=1000),
        residual_chain(6),
        unet(3),
        transformer(3),
        random_layered(60),
        random_graph(3, 30),
        random_graph(4, 30, training=False),
        Graph("empty", (), ()),
    )
}


def run(graph: Graph, name: str, budget: int | None) -> Simulation | None:
    """Check what a baseline returns and simulate it; None where it does not apply."""
    try:
        schedule = BASELINES[name](graph, budget)
    except NotApplicableError:
        if name != "per_block":
            raise
        return None
    assert schedule is not None
    check(graph, plan_of(graph, schedule.computes()))
    return simulate(graph, schedule)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_valid_and_within_budget_if_possible(graph: Graph, name: str) -> None:
    """A budget that the method can reach is met; any other gives its smallest peak."""
    base = run(graph, "keep_everything", None)
    smallest = run(graph, name, None)
    if base is None or smallest is None:
        return
    for share in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0):
        saved = base.peak_bytes - graph.resident_bytes
        budget = graph.resident_bytes + int(share * saved)
        result = run(graph, name, budget)
        assert result is not None
        if smallest.peak_bytes <= budget:
            assert result.peak_bytes <= budget
            assert result.time_ns <= smallest.time_ns
        elif result.peak_bytes > budget:
            assert result.peak_bytes <= smallest.peak_bytes


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_nothing_is_recomputed_if_everything_fits(graph: Graph, name: str) -> None:
    """At the peak of the base order no method recomputes anything."""
    base = run(graph, "keep_everything", None)
    assert base is not None
    result = run(graph, name, base.peak_bytes)
    if result is not None:
        assert result.time_ns == base.time_ns


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=40, deadline=None)
@given(graph=graphs(), budget=st.none() | st.integers(0, 600))
def test_valid_on_random_graphs(name: str, graph: Graph, budget: int | None) -> None:
    """Several outputs, run-once ops, outputs in the forward, dead results: nothing breaks them."""
    result = run(graph, name, budget)
    base = run(graph, "keep_everything", None)
    if result is not None and base is not None and budget is not None:
        assert result.peak_bytes <= max(budget, base.peak_bytes)


@pytest.mark.parametrize("name", ["sqrt_n", "log_n", "greedy"])
def test_graphs_without_backward_phase_are_kept_whole(name: str) -> None:
    """There is nothing to recompute in a step that has no second half."""
    graph = GRAPHS["layered-60-0"]
    result = run(graph, name, 0)
    assert result is not None
    assert result.ops == tuple(range(len(graph.ops)))


def test_crossing_bytes_of_a_residual_block() -> None:
    """Between blocks one tensor crosses, inside of a block the skip does as well."""
    graph = residual_chain(2, inner=2, size_bytes=10)
    # stem | layer0 | layer1 | sum | layer0 | layer1 | sum | loss
    tables = Tables.of(graph)
    assert crossing_bytes(graph, tables) == [0, 10, 20, 20, 10, 20, 20, 10]
    assert narrow_positions(graph, tables) == [1, 4, 7]


def test_narrow_positions_of_a_chain() -> None:
    """On a uniform chain every position is as narrow as the next one."""
    graph = linear_chain(4)
    assert narrow_positions(graph, Tables.of(graph)) == [1, 2, 3, 4]


class Looks(Control):
    """A clock that is over after so many looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    @property
    def over(self) -> bool:
        """True from the last look on."""
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize("name", ["sqrt_n", "log_n", "per_block", "greedy"])
def test_the_search_ends_when_time_is_over(name: str) -> None:
    """No candidate is tried after the deadline; the best so far is a valid schedule."""
    graph = transformer(4)
    looks = []
    for allowed in (1, 3, 10**6):
        control = Looks(allowed)
        schedule = BASELINES[name](graph, None, control)
        assert schedule is not None
        check(graph, plan_of(graph, schedule.computes()))
        looks.append(allowed - control.left)
    assert looks[:2] == [1, 3]
    assert looks[2] > 5


@pytest.mark.parametrize("name", ["sqrt_n", "log_n", "per_block", "greedy"])
def test_candidates_do_not_grow_with_size(name: str) -> None:
    """Eight times the layers take at most three times the candidates, each linear in the layers."""
    looks = []
    for blocks in (6, 48):
        control = Looks(10**6)
        BASELINES[name](transformer(blocks), None, control)
        looks.append(10**6 - control.left)
    assert looks[1] <= 3 * looks[0]
