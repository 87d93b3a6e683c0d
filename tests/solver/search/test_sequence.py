"""The search over execution sequences: exact at every move, undone without a trace, never worse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import transformer
from lowtide.solver.control import Control
from lowtide.solver.incumbent import keeps_order
from lowtide.solver.schedule import Schedule
from lowtide.solver.search.moves import list_live
from lowtide.solver.search.sequence import SequenceSearch, _propose
from lowtide.solver.search.state import TIME, commit, lay_out, peak_slot, read_out, roll_back
from lowtide.solver.simulate import simulate

from ..chains import mirrored_chain, recompute_all
from ..strategies import compute_sequences, graphs

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


def line_sequence(search: SequenceSearch) -> list[int]:
    """The sequence that stands on the line."""
    room = np.zeros(len(search.line.op_at), dtype=np.int64)
    computes: list[int] = room[: read_out(search.line, room)].tolist()
    return computes


def state_of(search: SequenceSearch) -> list[bytes]:
    """Everything that a move may change and a roll-back has to restore, in a comparable form."""
    line = search.line
    runs = [sorted(line.runs[op, : line.run_len[op]]) for op in range(len(line.run_len))]
    uses = [
        line.uses[start : start + count].tolist()
        for start, count in zip(line.use_ptr, line.use_len, strict=False)
    ]
    multi = sorted(line.multi[: line.number[2]].tolist())
    return [line.op_at.tobytes(), line.best.tobytes(), line.total.tobytes(),
            repr((runs, uses, multi, line.number.tolist())).encode()]  # fmt: skip


def same_as_simulated(graph: Graph, search: SequenceSearch) -> None:
    """Assert that peak and time on the line are those of `simulate`, and the sequence is legal."""
    computes = line_sequence(search)
    exact = simulate(graph, Schedule.from_computes(graph, computes))
    counted = search.line.best[1] + graph.resident_bytes
    if any(op.restores >= 0 for op in graph.ops):  # counted as if first runs read it, too
        assert counted >= exact.peak_bytes
    else:
        assert counted == exact.peak_bytes
    assert search.line.number[TIME] == exact.time_ns
    assert set(computes) == set(range(len(graph.ops)))
    fixed = [op for op in computes if not graph.ops[op].recompute]
    assert len(fixed) == len(set(fixed))


@settings(deadline=None)
@given(st.data())
def test_layout_counts_like_simulate(data: st.DataObject) -> None:
    """Any legal sequence has the same peak and time on the line as on paper."""
    graph = data.draw(graphs(max_ops=10))
    computes = data.draw(compute_sequences(graph))
    search = SequenceSearch(graph, 0)
    assert lay_out(search.arrays, search.line, np.array(computes), len(computes))
    assert line_sequence(search) == computes
    same_as_simulated(graph, search)


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=12), st.integers(0, 2**31 - 1), st.floats(0.0, 1.0))
def test_moves_are_exact_and_leave_no_trace(graph: Graph, seed: int, order: float) -> None:
    """After each random move the line agrees with `simulate`; a roll-back restores every table."""
    search = SequenceSearch(graph, seed)
    line, arrays = search.line, search.arrays
    count = len(graph.ops)
    assert lay_out(arrays, line, np.arange(count), count)
    commit(line)
    for step in range(30):
        before = state_of(search)
        list_live(arrays, line, search.extra, peak_slot(line))
        _propose(arrays, line, search.extra, step % 2 == 0, peak_slot(line), order)
        same_as_simulated(graph, search)
        if step % 3 == 0:
            roll_back(arrays, line)
            assert state_of(search) == before
        else:
            commit(line)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_never_worse_than_its_start(data: st.DataObject) -> None:
    """What is found is no further above the budget than the start or, within it, no slower."""
    graph = data.draw(graphs(max_ops=10))
    computes = data.draw(compute_sequences(graph))
    exact = simulate(graph, Schedule.from_computes(graph, computes))
    share = data.draw(st.floats(0.3, 1.1))
    room = int((exact.peak_bytes - graph.resident_bytes) * share)
    search = SequenceSearch(graph, 1)
    found = search.improve(computes, room, control=Control(), moves=400)
    again = simulate(graph, Schedule.from_computes(graph, found.computes))
    assert (again.peak_bytes - graph.resident_bytes, again.time_ns) == (found.peak, found.time)
    over, start_over = max(0, found.peak - room), exact.peak_bytes - graph.resident_bytes - room
    assert (over, found.time) <= (max(0, start_over), exact.time_ns) or over < start_over


def test_same_seed_same_schedule() -> None:
    """The same seed and number of moves give the same sequence; another seed another one."""
    graph = transformer(4)
    room = int(0.5 * simulate(graph, Schedule.keep_everything(graph)).peak_bytes)
    runs = [
        SequenceSearch(graph, seed).improve(
            range(len(graph.ops)), room, control=Control(), moves=20_000
        )
        for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1]
    assert runs[0].computes != runs[2].computes


def test_order_is_kept_if_asked() -> None:
    """Without moves of the order, ops run for the first time in base order."""
    graph = transformer(3)
    room = int(0.5 * simulate(graph, Schedule.keep_everything(graph)).peak_bytes)
    for order in (0.0, 0.5):
        found = SequenceSearch(graph, 0).improve(
            range(len(graph.ops)), room, control=Control(), moves=20_000, order=order
        )
        assert keeps_order(found.computes) == (order == 0.0)


def test_goes_on_from_far_longer_sequences_than_the_graph() -> None:
    """A start with dozens of runs of an op is held, counted exactly and improved on."""
    graph = mirrored_chain(64)
    nested = recompute_all(graph)
    exact = simulate(graph, Schedule.from_computes(graph, nested))
    room = exact.peak_bytes - graph.resident_bytes
    search = SequenceSearch(graph, 0)
    assert len(nested) > len(search.line.op_at)
    found = search.improve(nested, room, control=Control(), moves=20_000)
    assert found.peak <= room
    assert found.time < exact.time_ns
    again = simulate(graph, Schedule.from_computes(graph, found.computes))
    assert (again.peak_bytes - graph.resident_bytes, again.time_ns) == (found.peak, found.time)
