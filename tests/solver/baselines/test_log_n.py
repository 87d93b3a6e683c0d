"""Recursive checkpointing on chains: logarithmic memory for n log n time."""

from __future__ import annotations

import math

import pytest

from lowtide.frontends.chains import MIB, linear_chain
from lowtide.solver.baselines.log_n import log_n, recursive, subdivide
from lowtide.solver.realise import Tables
from lowtide.solver.simulate import simulate


@pytest.mark.parametrize("n", [16, 64, 256, 1024])
def test_halving_a_chain(n: int) -> None:
    """Full halving holds about log2 n units and runs about (n / 2) log2 n layers again."""
    graph = linear_chain(n)
    candidate, leaf_count = recursive(graph, Tables.of(graph), range(1, graph.boundary), 1, n)
    units = (candidate.peak_bytes - graph.resident_bytes) / MIB
    assert leaf_count == graph.boundary
    assert units <= math.log2(n) + 3
    again = len(candidate.schedule.computes()) - len(graph.ops)
    assert 0.5 <= again / (n / 2 * (math.log2(n) - 2)) <= 1.2


def test_depth_one_is_segment_checkpointing() -> None:
    """With one level every op runs at most twice."""
    graph = linear_chain(30)
    candidate, _ = recursive(graph, Tables.of(graph), range(1, graph.boundary), 4, 1)
    computes = candidate.schedule.computes()
    assert max(computes.count(op) for op in set(computes)) == 2


def test_each_level_runs_the_forward_once_more() -> None:
    """With d levels no op runs more than d + 1 times, and the peak falls with each level."""
    graph = linear_chain(64)
    peaks = []
    for depth in range(1, 6):
        candidate, _ = recursive(graph, Tables.of(graph), range(1, graph.boundary), 1, depth)
        computes = candidate.schedule.computes()
        assert max(computes.count(op) for op in set(computes)) <= depth + 1
        peaks.append(candidate.peak_bytes)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0]


def test_subdivision_stores_the_borders_on_the_way() -> None:
    """The borders stored for a leaf are the starts of the parts to its left, level by level."""
    borders, stored = subdivide([1] * 8, range(1, 8), 1, 3)
    assert borders == [1, 2, 3, 4, 5, 6, 7]
    assert stored == [(), (1,), (2,), (2, 3), (4,), (4, 5), (4, 6), (4, 6, 7)]


def test_subdivision_follows_bytes() -> None:
    """Parts have about equal bytes, not equal numbers of ops."""
    borders, _ = subdivide([700, 100, 100, 100, 100, 100, 100, 100], range(1, 8), 1, 1)
    assert borders == [1]


def test_smallest_peak_is_below_the_root() -> None:
    """Without a budget the method goes well below what one level of segments can reach."""
    graph = linear_chain(256)
    schedule = log_n(graph, None)
    assert schedule is not None
    assert (simulate(graph, schedule).peak_bytes - graph.resident_bytes) / MIB <= 12
