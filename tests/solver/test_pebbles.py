"""The pebble game: a bound for any order, and more than single ops say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.solver.control import Control
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.pebbles import pebble_bound
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.smallest import single_op_bound, smallest_found

from .strategies import compute_sequences, graphs

LARGE = 10**12


@given(data=st.data(), graph=graphs(max_ops=7))
@settings(max_examples=80, deadline=None)
def test_no_schedule_has_a_smaller_peak(data: st.DataObject, graph: Graph) -> None:
    """Whatever is recomputed and when; and single ops never say more."""
    bound = pebble_bound(graph, Control(), enough=LARGE)
    computes = data.draw(compute_sequences(graph))
    assert bound <= simulate(graph, Schedule.from_computes(graph, computes)).peak_bytes
    assert bound >= single_op_bound(graph, any_order=True)[0]
    assert pebble_bound(graph, Control(0.0), enough=LARGE) <= bound


@given(graph=graphs(max_ops=7, training=False))
@settings(max_examples=5, deadline=None)
def test_no_search_gets_below_it(graph: Graph) -> None:
    """Not in any order either."""
    found = smallest_found(graph, 0, Control())
    assert pebble_bound(graph, Control(), enough=LARGE) <= found.peak + graph.resident_bytes


def test_inputs_that_must_come_together_cost_more_than_any_op() -> None:
    """Each of two small tensors is made from a large one; the second finds the first in memory."""
    sizes = (10, 1, 10, 1, 1)
    reads: tuple[tuple[int, ...], ...] = ((), (0,), (), (2,), (1, 3))
    ops = tuple(Op(f"op{i}", "", 1, reads[i], (i,)) for i in range(5))
    graph = Graph("two", ops, tuple(Tensor(f"t{i}", size) for i, size in enumerate(sizes)))
    assert single_op_bound(graph, any_order=True)[0] == 11
    assert pebble_bound(graph, Control(), enough=LARGE) == 12
    assert pebble_bound(graph, Control(), enough=11) == 11
    assert smallest_found(graph, 0, Control()).peak == 12


def test_a_state_that_is_first_reached_the_dear_way() -> None:
    """Made again after it was overwritten, the input is there without its op's two copies."""
    ops = (
        Op("a", "", 1, (), (0,)),
        Op("b", "", 1, (0,), (1, 2), overwrites=0),
        Op("c", "", 1, (), (3,)),
        Op("d", "", 1, (3, 0, 2), (4,)),
    )
    sizes = (57, 57, 45, 4, 7)
    graph = Graph("again", ops, tuple(Tensor(f"t{i}", size) for i, size in enumerate(sizes)))
    reached = simulate(graph, Schedule.from_computes(graph, [0, 1, 2, 0, 3])).peak_bytes
    assert reached == pebble_bound(graph, Control(), enough=LARGE) == 113
