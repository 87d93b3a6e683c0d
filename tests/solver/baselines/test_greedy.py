"""Greedy dropping: the order, and that time grows as budgets shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings

from lowtide.frontends.chains import linear_chain, transformer
from lowtide.solver.baselines.greedy import drop_order, greedy
from lowtide.solver.realise import Tables
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..strategies import graphs

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


def dropped_names(graph: Graph) -> list[str]:
    """Names of the tensors in drop order."""
    return [graph.tensors[t].name for t in drop_order(graph, Tables.of(graph))]


def test_cheapest_per_byte_first() -> None:
    """Costs 1, 9 and 4 for sizes 10, 10 and 1: the last layer is dearest per byte."""
    graph = linear_chain(3, size_bytes=[10, 10, 1], time_ns=[1, 9, 4])
    assert dropped_names(graph) == ["layer0", "layer1", "layer2"]


def test_dropping_an_ancestor_raises_the_cost() -> None:
    """With layer 0 dropped, layer 1 costs more than layer 2, which was dearer by itself."""
    alone = linear_chain(3, size_bytes=[10, 10, 10], time_ns=[50, 12, 13])
    assert dropped_names(alone) == ["layer1", "layer2", "layer0"]
    # layer 0 goes first (cost 5); then layer 1 costs 6 + 5 and layer 2 costs 10
    chained = linear_chain(3, size_bytes=[10, 10, 10], time_ns=[5, 6, 10])
    assert dropped_names(chained) == ["layer0", "layer2", "layer1"]


@settings(max_examples=40, deadline=None)
@given(graphs(training=True))
def test_smaller_budgets_never_cost_less(graph: Graph) -> None:
    """Time is monotone in the budget, and the budget is met whenever the method can meet it."""
    base = simulate(graph, Schedule.keep_everything(graph))
    floor = simulate(graph, greedy(graph, None) or ())
    times = []
    for budget in range(base.peak_bytes, floor.peak_bytes - 1, -9):
        schedule = greedy(graph, budget)
        assert schedule is not None
        result = simulate(graph, schedule)
        assert result.peak_bytes <= budget
        times.append(result.time_ns)
    assert times == sorted(times)


def test_matmuls_are_dropped_last() -> None:
    """On a transformer the outputs of norms and GELUs go first, those of attention late."""
    graph = transformer(2)
    order = dropped_names(graph)
    kinds = [name.split(".")[1] for name in order if "." in name]
    assert kinds.index("gelu") < kinds.index("attention")
    assert kinds.index("norm1") < kinds.index("qkv")


def test_budget_is_met_with_a_small_overhead() -> None:
    """At 60% of what can be saved a transformer loses less time than one more forward pass."""
    graph = transformer(6)
    base = simulate(graph, Schedule.keep_everything(graph))
    budget = graph.resident_bytes + int(0.6 * (base.peak_bytes - graph.resident_bytes))
    result = simulate(graph, greedy(graph, budget) or ())
    assert result.peak_bytes <= budget
    assert 0 < result.time_ns - base.time_ns < 0.15 * base.time_ns
