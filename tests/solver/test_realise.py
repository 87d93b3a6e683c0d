"""From kept tensors to executions: valid on any graph, exact counts on chains."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import linear_chain, residual_chain
from lowtide.solver.check import check
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.realise import Tables, border_tensors, realise_nested, realise_saved
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from .strategies import graphs, plan_of


@settings(deadline=None)  # the first call compiles
@given(graphs(), st.data())
def test_any_save_set_gives_a_valid_schedule(graph: Graph, data: st.DataObject) -> None:
    """Whatever is kept, the schedule passes the checker, run-once ops included."""
    saved = data.draw(st.sets(st.integers(0, max(len(graph.tensors) - 1, 0))))
    saved = {t for t in saved if t < len(graph.tensors)}
    hold = data.draw(st.none() | st.integers(0, 5))
    check(graph, plan_of(graph, realise_saved(graph, saved, hold=hold)))


@settings(deadline=None)  # the first call compiles
@given(graphs(training=True), st.data())
def test_any_leaves_give_a_valid_schedule(graph: Graph, data: st.DataObject) -> None:
    """Whatever the borders and whichever are stored, the schedule passes the checker."""
    steps = data.draw(st.lists(st.integers(0, 1), min_size=graph.boundary, max_size=graph.boundary))
    leaf_of = [sum(steps[1 : i + 1]) for i in range(graph.boundary)]
    stored = [
        sorted(data.draw(st.sets(st.integers(1, leaf)))) if leaf else []
        for leaf in range(max(leaf_of) + 1)
    ]
    check(graph, plan_of(graph, realise_nested(graph, leaf_of, stored)))


@settings(deadline=None)  # the first call compiles
@given(graphs(), st.sets(st.integers(0, 5)))
def test_no_op_runs_more_than_twice(graph: Graph, saved: set[int]) -> None:
    """Recomputed tensors stay until their last need unless told otherwise."""
    saved = {t for t in saved if t < len(graph.tensors)}
    runs = Counter(realise_saved(graph, saved))
    assert max(runs.values()) <= 2
    assert set(runs) == set(range(len(graph.ops)))


@settings(deadline=None)  # the first call compiles
@given(graphs())
def test_keeping_all_recomputes_nothing(graph: Graph) -> None:
    """With everything saved the base order comes out."""
    everything = range(len(graph.tensors))
    assert realise_saved(graph, everything) == list(range(len(graph.ops)))


@settings(deadline=None)  # the first call compiles
@given(graphs(training=False))
def test_without_backward_phase_nothing_is_recomputed(graph: Graph) -> None:
    """Graphs without boundary give the base order."""
    assert realise_saved(graph, ()) == list(range(len(graph.ops)))


def test_chain_with_nothing_saved() -> None:
    """Each layer is run once more, all at once before the first gradient."""
    graph = linear_chain(5)
    computes = realise_saved(graph, ())
    # ops 0..4 layers, 5 loss, 6 boundary, 7 gradient of the loss (reads the last layer's output)
    assert computes[:13] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 7]
    assert computes[13:] == [8, 9, 10, 11, 12]


def test_chain_recomputed_for_every_use() -> None:
    """With hold 0 a layer's input is recomputed from the start each time: n (n + 1) / 2 runs."""
    graph = linear_chain(6, saves_output=False)
    computes = realise_saved(graph, (), hold=0)
    assert len(computes) - len(graph.ops) == 6 + 5 + 4 + 3 + 2 + 1
    small = simulate(graph, Schedule.from_computes(graph, computes)).peak_bytes
    large = simulate(graph, Schedule.from_computes(graph, realise_saved(graph, ()))).peak_bytes
    assert small < large


def test_hold_keeps_what_is_needed_soon() -> None:
    """A recomputed tensor whose next need lies within the hold is not made again."""
    graph = linear_chain(6)
    counts = [len(realise_saved(graph, (), hold=hold)) for hold in range(8)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == len(realise_saved(graph, ()))


def test_run_once_results_are_kept() -> None:
    """A needed tensor of a run-once op is kept; what depends on it is recomputed from there."""
    graph = Graph(
        "fixed",
        (
            Op("seed", "k", 1, (), (0,), recompute=False, phase="forward"),
            Op("random", "k", 1, (0,), (1,), phase="forward"),
            Op("backward", "lowtide.backward", 0, (), (2,), recompute=False, phase="backward"),
            Op("gradient", "k", 1, (1, 2), (3,), phase="backward"),
        ),
        (Tensor("s", 1), Tensor("r", 1), Tensor("t", 0, True), Tensor("g", 1, True)),
    )
    assert realise_saved(graph, ()) == [0, 1, 2, 1, 3]
    assert "free 0" not in Schedule.from_computes(graph, realise_saved(graph, ())).to_text()[:3]


def test_border_tensors_of_residual_blocks() -> None:
    """Inside a block the skip crosses as well; between blocks one tensor does."""
    graph = residual_chain(2, inner=2)  # stem, (layer, layer, sum) twice, loss
    tables = Tables.of(graph)
    names = [tensor.name for tensor in graph.tensors]
    between = border_tensors(tables, [0, 0, 0, 0, 1, 1, 1, 1])
    inside = border_tensors(tables, [0, 0, 1, 1, 1, 1, 1, 1])
    assert {names[t] for t in np.flatnonzero(between)} == {"block0.sum"}
    assert {names[t] for t in np.flatnonzero(inside)} == {"stem", "block0.layer0"}


@pytest.mark.parametrize(("op", "expected"), [(0, 1), (1, 8), (7, 8), (8, 9), (9, 11)])
def test_next_use(op: int, expected: int) -> None:
    """The next user after a base op, or the number of ops if there is none."""
    graph = linear_chain(3, weight_bytes=8)
    first = [tensor.name for tensor in graph.tensors].index("layer0")
    users = [i for i, it in enumerate(graph.ops) if first in it.inputs]
    assert Tables.of(graph).next_use(first, op) == expected
    assert users == [1, 8, 9]
