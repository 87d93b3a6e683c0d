"""Schedules: derived frees, text form, counts."""

from __future__ import annotations

import pytest
from hypothesis import given

from lowtide.solver.errors import CheckError, InputError
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.schedule import Schedule

from .strategies import graphs, with_computes


def chain() -> Graph:
    """Tensors w (resident), a, b, c (output); ops a(w), b(a), c(a, b)."""
    return Graph(
        "chain",
        (
            Op("a", "k", 1, (0,), (1,)),
            Op("b", "k", 1, (1,), (2,)),
            Op("c", "k", 1, (1, 2), (3,)),
        ),
        (Tensor("w", 1), Tensor("a", 1), Tensor("b", 1), Tensor("c", 1, output=True)),
    )


def test_tensors_die_after_their_last_need() -> None:
    """Frees follow the op that last reads a tensor; residents and outputs are never freed."""
    words = Schedule.keep_everything(chain()).to_text()
    assert words == ("compute 0", "compute 1", "compute 2", "free 1", "free 2")


def test_recomputation_frees_the_first_instance() -> None:
    """An instance dies at its last need before the tensor is made again."""
    words = Schedule.from_computes(chain(), [0, 1, 0, 2]).to_text()
    assert words == (
        "compute 0",
        "compute 1",
        "free 1",
        "compute 0",
        "compute 2",
        "free 1",
        "free 2",
    )


def test_results_without_reader_die_at_once() -> None:
    """A result that nobody needs is freed right after its op."""
    graph = Graph("g", (Op("a", "k", 1, (), (0, 1)),), (Tensor("x", 1), Tensor("y", 1, True)))
    assert Schedule.keep_everything(graph).to_text() == ("compute 0", "free 0")


def test_recomputed_outputs_are_not_freed() -> None:
    """An output that is made again is never out of memory in between."""
    assert "free 3" not in Schedule.from_computes(chain(), [0, 1, 2, 0, 1, 2]).to_text()


def test_reading_before_production_is_refused() -> None:
    """An op whose input was never made is named."""
    with pytest.raises(CheckError, match=r"tensor 1 \(a\) is read before it is produced"):
        Schedule.from_computes(chain(), [1])


@pytest.mark.parametrize(
    "word",
    ["compute", "compute x", "free -1", "run 3", "", "free 1 2", "compute \u0661", "free \u00b2",
     "compute " + "9" * 5000],
)  # fmt: skip
def test_unreadable_words_are_refused(word: str) -> None:
    """The message says which step is wrong and what was expected, in one line."""
    with pytest.raises(InputError, match="step 1 of the schedule is") as caught:
        Schedule.from_text(["compute 0", word])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 150


@given(with_computes())
def test_text_round_trip(case: tuple[Graph, list[int]]) -> None:
    """Text form and schedule are the same thing, and the executions survive."""
    graph, computes = case
    schedule = Schedule.from_computes(graph, computes)
    assert Schedule.from_text(schedule.to_text()) == schedule
    assert list(schedule.computes()) == computes
    assert schedule.recomputes() == len(computes) - len(graph.ops)
    assert len(schedule) == len(list(schedule))


@given(with_computes())
def test_frees_are_as_early_as_possible(case: tuple[Graph, list[int]]) -> None:
    """Between a free and the step before it there is always a need of that tensor by that op."""
    graph, computes = case
    op = -1
    for step in Schedule.from_computes(graph, computes):
        if step >= 0:
            op = step
        else:
            assert -step - 1 in (*graph.ops[op].inputs, *graph.ops[op].outputs)


@given(with_computes())
def test_nothing_is_left_but_outputs(case: tuple[Graph, list[int]]) -> None:
    """At the end exactly the outputs that ops make are in memory."""
    graph, computes = case
    alive: set[int] = set()
    for step in Schedule.from_computes(graph, computes):
        if step >= 0:
            alive.update(graph.ops[step].outputs)
        else:
            alive.remove(-step - 1)
    made = {t for op in graph.ops for t in op.outputs}
    assert alive == {t for t in made if graph.tensors[t].output}


@given(graphs())
def test_keep_everything_recomputes_nothing(graph: Graph) -> None:
    """The base order runs every op once."""
    schedule = Schedule.keep_everything(graph)
    assert schedule.computes() == tuple(range(len(graph.ops)))
    assert schedule.recomputes() == 0
