"""Figures of a block's options: those of `simulate`, operators that overwrite an input included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import linear_chain
from lowtide.solver.blocks.options import AGAIN, KEPT, PEAK, REMAKE, RISE, measure
from lowtide.solver.blocks.plan import constant_bytes, find_chains
from lowtide.solver.control import Control
from lowtide.solver.schedule import Schedule
from lowtide.solver.search.evaluate import arrays_of
from lowtide.solver.simulate import simulate

from ..strategies import compute_sequences, graphs, overwriting
from .chains import realised, solved, whole_values

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_figures_are_those_of_the_simulation(data: st.DataObject) -> None:
    """Peaks on both sides of the border, what crosses it, and the time behind it."""
    drawn = data.draw(graphs(training=True))
    # Blocks have no operators that read something only when they run again.
    ops = tuple(msgspec.structs.replace(op, restores=-1) for op in drawn.ops)
    graph = msgspec.structs.replace(drawn, ops=ops)
    computes = data.draw(compute_sequences(graph))
    border = data.draw(st.sampled_from([op for op in computes if computes.count(op) == 1]))
    handed = np.array([data.draw(st.booleans()) for _ in graph.tensors], dtype=np.bool_)
    schedule = Schedule.from_computes(graph, computes)
    found = simulate(graph, schedule)
    place = computes.index(border)
    during = [it - graph.resident_bytes for it in found.during_bytes]
    figures = measure(arrays_of(graph), np.array(computes, dtype=np.int64), border, handed)
    assert figures[RISE] == max(during[:place], default=0)
    assert figures[PEAK] == max(during[place + 1 :], default=0)
    assert figures[AGAIN] == 0
    assert figures[REMAKE] == sum(graph.ops[op].time_ns for op in computes[place:] if op < border)
    there = present_after(graph, schedule, place)
    size = graph.arrays.size
    assert sum(int(size[t]) for t in there) + graph.resident_bytes == found.after_bytes[place]
    there -= set(graph.ops[border].outputs) | set(np.flatnonzero(handed).tolist())
    assert figures[KEPT] == sum(int(size[t]) for t in there if not graph.tensors[t].output)


def present_after(graph: Graph, schedule: Schedule, place: int) -> set[int]:
    """Tensors in memory after execution number `place` and its frees."""
    there: set[int] = set()
    run = -1
    for step in schedule:
        if step >= 0:
            run += 1
            if run > place:
                break
            there |= set(graph.ops[step].outputs)
        else:
            there.discard(-step - 1)
    return there


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_chains_keep_to_their_memory_where_operators_overwrite(data: st.DataObject) -> None:
    """What blocks promise holds for the whole, whichever of their inputs operators overwrite."""
    count = data.draw(st.integers(4, 9))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    weight = data.draw(st.integers(0, 5))
    chain = linear_chain(count, size_bytes=sizes, time_ns=10, weight_bytes=weight)
    graph = data.draw(overwriting(chain))
    base = simulate(graph, Schedule.keep_everything(graph))
    room = base.peak_bytes - graph.resident_bytes
    assume(any(True for _ in find_chains(graph, Control())))
    solved_chain, solution = solved(graph, 1.0, room)
    assume(solution.smallest() >= 0)
    constant = constant_bytes(graph, solved_chain.cuts)
    for memory in range(solution.smallest(), room + 1):
        result = realised(graph, solved_chain, solution, memory)
        assert result.time_ns - base.time_ns == whole_values(solution)[memory]
        assert result.peak_bytes - graph.resident_bytes <= memory + constant
