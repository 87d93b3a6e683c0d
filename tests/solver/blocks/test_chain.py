"""The dynamic program: exact accounting on small chains, optimal on uniform ones, log memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import MIB, linear_chain, residual_chain
from lowtide.solver.blocks.plan import constant_bytes
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve

from .chains import realised, solved, whole_values

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph

SMALL = {
    "uniform": linear_chain(5, size_bytes=4, time_ns=10),
    "weights": linear_chain(6, size_bytes=4, time_ns=10, weight_bytes=3),
    "residual": residual_chain(2, inner=2, size_bytes=8, time_ns=16),
}


def room_of(graph: Graph) -> int:
    """Peak of the base order, resident bytes not counted."""
    base = simulate(graph, Schedule.keep_everything(graph))
    return base.peak_bytes - graph.resident_bytes


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=4, max_size=9),
    st.integers(0, 5),
    st.booleans(),
)
def test_value_and_memory_are_those_of_the_schedule(
    layers: list[tuple[int, int]], weight: int, saves_output: bool
) -> None:
    """On chains of any sizes and times: time to the nanosecond, and never above the memory."""
    sizes, times = [size for size, _ in layers], [time for _, time in layers]
    graph = linear_chain(
        len(layers), size_bytes=sizes, time_ns=times, weight_bytes=weight, saves_output=saves_output
    )
    base = simulate(graph, Schedule.keep_everything(graph))
    chain, solution = solved(graph, 1.0, room_of(graph))
    constant = constant_bytes(graph, chain.cuts)
    for memory in range(solution.smallest(), room_of(graph) + 1):
        result = realised(graph, chain, solution, memory)
        assert result.time_ns - base.time_ns == whole_values(solution)[memory]
        assert result.peak_bytes - graph.resident_bytes <= memory + constant


@pytest.mark.parametrize("graph", SMALL.values(), ids=SMALL)
def test_never_below_the_optimum_and_equal_on_uniform_chains(graph: Graph) -> None:
    """Against the whole staged program at every peak that the dynamic program knows."""
    base = sum(op.time_ns for op in graph.ops)
    chain, solution = solved(graph, 1.0, room_of(graph))
    seen = set()
    for memory in range(solution.smallest(), room_of(graph) + 1):
        result = realised(graph, chain, solution, memory)
        if result.peak_bytes in seen:
            continue
        seen.add(result.peak_bytes)
        optimum = solve(graph, result.peak_bytes, method="milp", gap=0.0).time_ns
        assert result.time_ns >= optimum
        if graph is SMALL["uniform"]:
            assert result.time_ns == optimum
    assert len(seen) >= 2
    assert base in {solution_time + base for solution_time in whole_values(solution)}


def test_more_memory_never_costs_more() -> None:
    """Values fall with memory, in every stretch."""
    _, solution = solved(residual_chain(6), MIB / 2, 60)
    finite = np.where(np.isinf(solution.value), 1e300, solution.value)
    assert (np.diff(finite, axis=1) <= 0).all()


@pytest.mark.parametrize("layers", [64, 256])
def test_memory_falls_to_the_logarithm(layers: int) -> None:
    """A checkpoint may be passed several times: about log2 n units are enough."""
    graph = linear_chain(layers)
    _, solution = solved(graph, float(MIB), 40)
    assert solution.smallest() <= math.log2(layers) + 4


def test_alike_stretches_share_a_row() -> None:
    """On one kind of block the rows grow with the length of the chain, not with its square."""
    rows = []
    for blocks in (20, 40):
        _, solution = solved(residual_chain(blocks), float(MIB), 40)
        rows.append(len(solution.value))
    assert rows[1] < 2.2 * rows[0]
