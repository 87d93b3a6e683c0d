"""The accounting, on cases that can be done by hand and against the independent checker."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lowtide.solver.check import check_peak
from lowtide.solver.errors import CheckError
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import peak_on_existing, simulate

from .strategies import with_computes


def chain(workspace_bytes: int = 0, rerun_workspace_bytes: int = -1) -> Graph:
    """w (resident, 1000 B) -> a (1 B) -> b (10 B) -> c (100 B, output), times 2, 3, 4 ns."""
    return Graph(
        "chain",
        (
            Op("a", "k", 2, (0,), (1,), workspace_bytes, rerun_workspace_bytes),
            Op("b", "k", 3, (1,), (2,)),
            Op("c", "k", 4, (2,), (3,)),
        ),
        (Tensor("w", 1000), Tensor("a", 1), Tensor("b", 10), Tensor("c", 100, output=True)),
        extra_resident_bytes=5000,
    )


def test_inputs_and_outputs_are_live_during_an_op() -> None:
    """Each op holds what it reads and makes; what is not needed any more is gone after it."""
    result = simulate(chain(), Schedule.keep_everything(chain()))
    assert result.during_bytes == (6001, 6011, 6110)
    assert result.after_bytes == (6001, 6010, 6100)
    assert result.peak_bytes == 6110
    assert result.peak_position == 2
    assert result.ops == (0, 1, 2)
    assert result.time_ns == 9


def test_workspace_lives_during_its_op_only() -> None:
    """Workspace counts in the peak and nowhere else."""
    result = simulate(chain(workspace_bytes=500), Schedule.keep_everything(chain()))
    assert result.during_bytes == (6501, 6011, 6110)
    assert result.after_bytes == (6001, 6010, 6100)


def test_later_runs_may_have_another_workspace() -> None:
    """The second execution of an op counts its rerun workspace."""
    graph = chain(workspace_bytes=5, rerun_workspace_bytes=70)
    result = simulate(graph, Schedule.from_computes(graph, [0, 0, 1, 2]))
    assert result.during_bytes == (6006, 6071, 6011, 6110)
    assert result.time_ns == 11


def overwriting(size: int = 10) -> Graph:
    """a (10 B) is read by b and c; c may put its result (`size` bytes, an output) there."""
    return Graph(
        "overwriting",
        (
            Op("a", "k", 1, (), (0,)),
            Op("b", "k", 1, (0,), (1,)),
            Op("c", "k", 1, (0, 1), (2,), workspace_bytes=2, overwrites=0),
        ),
        (Tensor("a", 10), Tensor("b", 1), Tensor("c", size, output=True)),
    )


def test_an_input_that_dies_is_overwritten() -> None:
    """Freed right after the op, in whatever order, its bytes are the output's during the op."""
    graph = overwriting()
    for steps in ([0, 1, 2, -1, -2], [0, 1, 2, -2, -1]):
        result = simulate(graph, steps)
        assert result.during_bytes == (10, 11, 13)
        assert result.peak_bytes == 13 == check_peak(graph, Schedule(tuple(steps)).to_text())


@pytest.mark.parametrize(
    ("size", "steps"),
    [(10, (0, 1, 2, -2, 1, -1)), (10, (0, 1, 2)), (9, (0, 1, 2, -1)), (11, (0, 1, 2, -1))],
)
def test_an_input_that_stays_is_not_overwritten(size: int, steps: tuple[int, ...]) -> None:
    """Kept for a rerun, never freed, or of another size: both are in memory."""
    graph = overwriting(size)
    result = simulate(graph, steps)
    assert result.during_bytes[2] == 13 + size
    assert result.peak_bytes == check_peak(graph, Schedule(steps).to_text())


def test_peak_on_existing_gradients() -> None:
    """The old gradients count throughout; a new one that was added to its old one does not stay."""
    graph = Graph(
        "two gradients",
        (
            Op("a", "k", 1, (), (0,)),
            Op("ga", "k", 1, (0,), (1,)),
            Op("b", "k", 1, (0,), (2,)),
            Op("gb", "k", 1, (2,), (3,)),
        ),
        (
            Tensor("a", 10),
            Tensor("ga", 100, output=True),
            Tensor("b", 30),
            Tensor("gb", 1000, output=True),
        ),
    )
    keep = Schedule.keep_everything(graph)
    assert simulate(graph, keep).during_bytes == (10, 110, 140, 1130)
    assert peak_on_existing(graph, keep, [(1, 1), (3, 3)]) == 1100 + 1030
    assert peak_on_existing(graph, keep, [(3, 1), (3, 3)]) == 1100 + 1130
    assert peak_on_existing(graph, keep, []) == 1130
    assert peak_on_existing(graph, [], []) == 0


def test_rerun_over_a_live_output_holds_two_copies() -> None:
    """An output made again while it is live counts twice during that run and once after it."""
    graph = chain()
    result = simulate(graph, [0, 1, 2, 2])
    assert result.during_bytes == (6001, 6011, 6111, 6211)
    assert result.after_bytes[-1] == 6111


def test_every_run_makes_all_outputs() -> None:
    """An op that is run again for one result pays for the other one as well."""
    graph = Graph(
        "two",
        (Op("a", "k", 1, (), (0, 1)), Op("b", "k", 1, (0,), ()), Op("c", "k", 1, (1,), ())),
        (Tensor("x", 7), Tensor("y", 30)),
    )
    result = simulate(graph, Schedule.from_computes(graph, [0, 1, 0, 2]))
    assert result.during_bytes == (37, 7, 37, 30)


def test_empty_schedule() -> None:
    """Nothing to run leaves the resident bytes."""
    result = simulate(Graph("empty", (), (Tensor("w", 5),)), Schedule(()))
    assert (result.peak_bytes, result.time_ns, result.peak_position) == (5, 0, -1)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([1], "step 0 computes b, whose input a is not in memory"),
        ([0, -2, 1], "step 2 computes b, whose input a is not in memory"),
        ([0, -2, -2], "step 2 frees tensor 1, which is not in memory"),
        ([-1], "step 0 frees tensor 0, which is not in memory"),
        ([0, -99], "step 1 frees tensor 98, which is not in memory"),
        ([7], "step 0 computes op 7; the graph has 3"),
    ],
)
def test_impossible_steps_are_refused(steps: list[int], message: str) -> None:
    """The first impossible step is named; residents cannot be freed."""
    with pytest.raises(CheckError, match=message):
        simulate(chain(), steps)


@settings(max_examples=300)
@given(with_computes())
def test_checker_finds_the_same_peak(case: tuple[Graph, list[int]]) -> None:
    """Two implementations that share no code agree on random graphs and executions."""
    graph, computes = case
    schedule = Schedule.from_computes(graph, computes)
    assert check_peak(graph, schedule.to_text()) == simulate(graph, schedule).peak_bytes


@given(with_computes())
def test_peak_is_the_largest_sum_of_live_tensors(case: tuple[Graph, list[int]]) -> None:
    """A third count, by set of live tensors after each step, gives the same bytes after each op."""
    graph, computes = case
    schedule = Schedule.from_computes(graph, computes)
    result = simulate(graph, schedule)
    made = {t for op in graph.ops for t in op.outputs}
    alive = {t for t in range(len(graph.tensors)) if t not in made}
    after: list[int] = []
    for step in schedule:
        if step >= 0:
            alive.update(graph.ops[step].outputs)
            after.append(0)
        else:
            alive.remove(-step - 1)
        after[-1] = graph.extra_resident_bytes + sum(graph.tensors[t].size_bytes for t in alive)
    assert result.after_bytes == tuple(after)
    assert all(d >= a for d, a in zip(result.during_bytes, result.after_bytes, strict=True))
    assert result.time_ns == sum(graph.ops[op].time_ns for op in computes)


@given(with_computes())
def test_freeing_late_never_lowers_the_peak(case: tuple[Graph, list[int]]) -> None:
    """Derived frees are the best ones: dropping any of them cannot help."""
    graph, computes = case
    schedule = Schedule.from_computes(graph, computes)
    peak = simulate(graph, schedule).peak_bytes
    never = simulate(graph, [step for step in schedule if step >= 0])
    assert never.peak_bytes >= peak
