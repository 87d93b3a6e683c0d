"""Segment checkpointing on chains: the published growth and the published algorithm."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from lowtide.frontends.chains import MIB, linear_chain, residual_chain
from lowtide.solver.baselines.sqrt_n import leaves, segment, sqrt_n
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

LENGTHS = (16, 64, 256, 1024)


def test_peak_grows_with_the_root_at_one_extra_forward() -> None:
    """On n unit layers the peak is about 2 sqrt(n), for at most one more forward pass."""
    peaks = []
    for n in LENGTHS:
        graph = linear_chain(n)
        schedule = sqrt_n(graph, None)
        assert schedule is not None
        result = simulate(graph, schedule)
        peaks.append((result.peak_bytes - graph.resident_bytes) / MIB)
        forward = sum(op.time_ns for op in graph.ops if op.phase == "forward")
        assert result.time_ns <= sum(op.time_ns for op in graph.ops) + forward
        assert peaks[-1] <= 2 * math.sqrt(n) + 2
    exponent = np.polyfit(np.log(LENGTHS), np.log(peaks), 1)[0]
    assert 0.4 < exponent < 0.6


@pytest.mark.parametrize(
    ("limit", "positions", "borders"),
    [
        (0, range(1, 6), (1, 2, 3, 4, 5)),
        (1, range(1, 6), (2, 4)),
        (2, range(1, 6), (3,)),
        (1, (3, 5), (3, 5)),
        (6, range(1, 6), ()),
    ],
)
def test_algorithm_3(limit: float, positions: range, borders: tuple[int, ...]) -> None:
    """A segment ends at the first candidate after its bytes exceed B."""
    assert segment([1] * 6, positions, limit) == borders


def test_leaves_number_the_segments() -> None:
    """Border p lies before op p."""
    assert leaves((2, 4), 6) == [0, 0, 1, 1, 2, 2]
    assert leaves((), 3) == [0, 0, 0]


def test_segments_end_where_little_crosses() -> None:
    """On residual blocks the smallest peak is reached with block outputs as borders."""
    graph = residual_chain(16, inner=3)
    schedule = sqrt_n(graph, None)
    assert schedule is not None
    result = simulate(graph, schedule)
    base = simulate(graph, Schedule.keep_everything(graph))
    saved = base.peak_bytes - graph.resident_bytes
    assert result.peak_bytes - graph.resident_bytes < 0.4 * saved
    runs = Counter(schedule.computes())
    sums = [i for i, op in enumerate(graph.ops) if op.name.endswith(".sum")]
    assert sum(runs[i] == 1 for i in sums) >= 3


def test_smaller_budgets_cost_more() -> None:
    """The time does not fall when the budget does, and the budget is kept where it can be."""
    graph = linear_chain(100)
    times = []
    for share in (100, 60, 40, 25):
        budget = graph.resident_bytes + share * MIB
        schedule = sqrt_n(graph, budget)
        assert schedule is not None
        result = simulate(graph, schedule)
        assert result.peak_bytes <= budget
        times.append(result.time_ns)
    assert times == sorted(times)
    assert times[0] < times[-1]
