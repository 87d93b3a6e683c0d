"""The exact oracle in any order follows the accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from tests.solver.brute_force import optimum_any_order
from tests.solver.strategies import compute_sequences, graphs

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_no_schedule_is_better(data: st.DataObject) -> None:
    """Any schedule is one that the oracle could have found, with in-place ops and saved states."""
    graph: Graph = data.draw(graphs(max_ops=5))
    computes = data.draw(compute_sequences(graph, max_extra=4))
    result = simulate(graph, Schedule.from_computes(graph, computes))
    best = optimum_any_order(graph, result.peak_bytes)
    assert best is not None
    assert best <= result.time_ns
