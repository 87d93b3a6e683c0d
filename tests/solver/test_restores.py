"""What only later executions read: saved states of a generator, made where one follows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.solver.check import check, check_peak, check_schedule
from lowtide.solver.errors import CheckError, InputError
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.memory.blocks import blocks_of
from lowtide.solver.schedule import Schedule
from lowtide.solver.search.anneal import Search
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve
from tests.plans import plan_of
from tests.solver.strategies import compute_sequences, graphs, restoring

STATE = 50
SAVE, DRAW, USE, BACKWARD, READ = range(5)


def dropout() -> Graph:
    """A state of 50 B is saved, 10 B are drawn, used in forward, and read in backward."""
    ops = (
        Op("save", "rng_state", 1, (), (0,), recompute=False, phase="forward"),
        Op("draw", "dropout", 1, (0,), (1,), phase="forward", restores=0),
        Op("use", "mul", 1, (1,), (2,), phase="forward"),
        Op("backward", "lowtide.backward", 0, (2,), (3,), recompute=False, phase="backward"),
        Op("read", "mul", 1, (3, 1), (4,), phase="backward"),
    )
    sizes = (STATE, 10, 100, 1, 10)
    tensors = tuple(Tensor(f"t{i}", size, output=i in (3, 4)) for i, size in enumerate(sizes))
    return Graph("dropout", ops, tensors)


def test_a_state_that_nobody_puts_back_takes_nothing() -> None:
    """Without a rerun it is freed by the op that would save it, and never counted."""
    graph = dropout()
    schedule = Schedule.keep_everything(graph)
    assert schedule.steps[:2] == (SAVE, -1)
    found = simulate(graph, schedule)
    assert found.during_bytes == (0, 10, 110, 111, 21)
    assert check_peak(graph, schedule.to_text()) == found.peak_bytes == 111
    check(graph, plan_of(graph, schedule))
    assert solve(graph, found.peak_bytes, time_limit=2.0).time_ns == 4


def test_a_state_that_is_put_back_stays_until_then() -> None:
    """From its saving to the last rerun; in between the result is not there."""
    graph = dropout()
    schedule = Schedule.from_computes(graph, [SAVE, DRAW, USE, BACKWARD, DRAW, READ])
    found = simulate(graph, schedule)
    assert found.during_bytes == (50, 60, 160, 151, 61, 21)
    assert check_peak(graph, schedule.to_text()) == found.peak_bytes == 160
    check(graph, plan_of(graph, schedule))


def test_a_state_that_is_kept_for_nothing_counts() -> None:
    """Schedules may free later than they could: then it was saved."""
    graph = dropout()
    schedule = Schedule((SAVE, DRAW, USE, -1, BACKWARD, -3, READ, -2))
    found = simulate(graph, schedule)
    assert found.during_bytes == (50, 60, 160, 111, 21)
    assert check_peak(graph, schedule.to_text()) == found.peak_bytes


def test_the_state_is_saved_before_the_draw() -> None:
    """Nobody needs it there, and yet its time is then or never."""
    graph = dropout()
    late = Schedule((DRAW, SAVE, -1, USE, BACKWARD, -3, READ, -2))
    with pytest.raises(CheckError, match="is not in memory"):
        simulate(graph, late)
    right = plan_of(graph, Schedule.keep_everything(graph))
    with pytest.raises(CheckError, match="is not in memory"):
        check_schedule(graph, msgspec.structs.replace(right, steps=late.to_text()))
    again = Schedule((SAVE, -1, DRAW, USE, BACKWARD, -3, -2, DRAW, READ, -2))
    with pytest.raises(CheckError, match="is not in memory"):
        check_schedule(graph, msgspec.structs.replace(right, steps=again.to_text()))


def test_graphs_say_which_input_it_is() -> None:
    """An input that an op makes, and that is not overwritten."""
    graph = dropout()
    for wrong in (1, 2):
        ops = list(graph.ops)
        ops[DRAW] = msgspec.structs.replace(ops[DRAW], restores=wrong)
        with pytest.raises(InputError, match="restores tensor"):
            msgspec.structs.replace(graph, ops=tuple(ops))
    plain = msgspec.structs.replace(graph.ops[DRAW], restores=-1)
    without = msgspec.structs.replace(graph, ops=(graph.ops[0], plain, *graph.ops[2:]))
    assert without.structure_hash != graph.structure_hash


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_every_accounting_agrees(data: st.DataObject) -> None:
    """Simulation, checker, compiled evaluator, and blocks for addresses, on any schedule."""
    graph = data.draw(restoring(data.draw(graphs(max_ops=8))))
    computes = data.draw(compute_sequences(graph))
    schedule = Schedule.from_computes(graph, computes)
    found = simulate(graph, schedule)
    assert check_peak(graph, schedule.to_text()) == found.peak_bytes
    measured = Search(graph, 0).measure(computes)
    assert measured.peak + graph.resident_bytes == found.peak_bytes
    live = [0] * len(computes)
    for block in blocks_of(graph, schedule, workspace=True):
        for at in range(block.first, block.last + 1):
            live[at] += block.size_bytes
    assert max(live) + graph.resident_bytes == found.peak_bytes
