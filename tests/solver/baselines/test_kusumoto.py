"""The program over lower sets against enumeration of all strategies."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from lowtide.frontends.chains import linear_chain, unet
from lowtide.solver.baselines.kusumoto import shortest, transitions
from lowtide.solver.baselines.lower_sets import all_lower_sets, ancestor_sets, boundary_of
from lowtide.solver.control import Control
from lowtide.solver.realise import Tables

from ..strategies import graphs

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


def is_lower(graph: Graph, members: set[int]) -> bool:
    """No op inside reads a result of a forward op outside."""
    arrays = graph.arrays
    return all(
        int(arrays.producer[t]) in members for op in members for t in arrays.inputs(op).tolist()
    )


@settings(max_examples=40, deadline=None)
@given(graph=graphs(training=True, max_ops=5))
def test_lower_sets_are_all_and_closed(graph: Graph) -> None:
    """Every closed subset of the forward ops, by definition, each once."""
    tables = Tables.of(graph)
    if tables.boundary == 0 or tables.boundary > 8:
        return
    found = all_lower_sets(graph, tables, 10_000, Control())
    assert found is not None
    listed = {tuple(np.flatnonzero(row).tolist()) for row in found}
    expected = {
        chosen
        for size in range(tables.boundary + 1)
        for chosen in itertools.combinations(range(tables.boundary), size)
        if is_lower(graph, set(chosen))
    }
    assert listed == expected
    assert len(found) == len(listed)
    few = ancestor_sets(graph, tables, 100)
    assert {tuple(np.flatnonzero(row).tolist()) for row in few} <= listed


@pytest.mark.parametrize("graph", [linear_chain(4), unet(1)], ids=lambda g: g.name)
def test_exact_program_against_enumeration(graph: Graph) -> None:
    """The least overhead of any increasing sequence whose every part fits."""
    tables = Tables.of(graph)
    sets = all_lower_sets(graph, tables, 3000, Control())
    assert sets is not None
    boundary = boundary_of(graph, tables, sets)
    ticks = np.arange(1, tables.boundary + 1, dtype=np.float64)
    steps = transitions(graph, tables, sets, boundary, ticks, Control())
    assert steps is not None
    assert transitions(graph, tables, sets, boundary, ticks, Control(0.0)) is None
    step = {
        (number, int(steps.end[k])): k
        for number in range(len(sets))
        for k in range(steps.start[number], steps.start[number + 1])
    }

    def cheapest(number: int, held: int, room: int) -> float:
        if number == len(sets) - 1:
            return 0.0
        return min(
            (
                int(steps.ticks[k]) + cheapest(after, held + int(steps.adds[k]), room)
                for (before, after), k in step.items()
                if before == number and held + int(steps.peak[k]) <= room
            ),
            default=float("inf"),
        )

    total = int(graph.arrays.size.sum())
    feasible = 0
    for room in (total // 8, total // 4, total // 2, total):
        best = cheapest(0, 0, room)
        chain = shortest(steps, len(sets), room)
        assert (chain is None) == (best == float("inf"))
        if chain is not None:
            feasible += 1
            assert sum(int(steps.ticks[step[pair]]) for pair in itertools.pairwise(chain)) == best
    assert feasible
