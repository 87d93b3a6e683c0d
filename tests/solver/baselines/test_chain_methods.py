"""Revolve and rotor against closed forms and brute force."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import linear_chain, residual_chain
from lowtide.solver.baselines.chain import Chain, ChainCosts, linearized
from lowtide.solver.baselines.revolve import forward_steps
from lowtide.solver.baselines.revolve import reruns as revolve_runs
from lowtide.solver.baselines.rotor import IMPOSSIBLE, solve_chain
from lowtide.solver.baselines.rotor import reruns as rotor_runs
from lowtide.solver.realise import Tables

if TYPE_CHECKING:
    from lowtide.solver.baselines.chain import Runs


@functools.cache
def least_steps(steps: int, snapshots: int) -> int:
    """t(l, s) by its recursion."""
    if steps <= 1:
        return 0
    if snapshots == 1:
        return steps * (steps - 1) // 2
    return min(
        m + least_steps(steps - m, snapshots - 1) + least_steps(m, snapshots)
        for m in range(1, steps)
    )


@pytest.mark.parametrize("snapshots", range(1, 7))
def test_griewanks_closed_form(snapshots: int) -> None:
    """r l - C(s + r, r - 1) is the optimum of the recursion."""
    for steps in range(1, 41):
        assert forward_steps(steps, snapshots) == least_steps(steps, snapshots)


def stored(runs: Runs, step: int, state: int) -> bool:
    """Whether a run, from that of `step` on, starts at `state` before one makes it anew."""
    for later in range(step, -1, -1):
        start = runs[later]
        assert start is not None
        if start == state:
            return True
        if start < state <= later:
            return False
    return False


@pytest.mark.parametrize(("steps", "snapshots"), [(1, 1), (7, 1), (10, 2), (40, 3), (41, 40)])
def test_revolve_runs_as_often_as_the_closed_form_says(steps: int, snapshots: int) -> None:
    """Beside the first pass and the taped steps; no more snapshots are held than allowed."""
    runs = revolve_runs(steps, snapshots)
    assert runs[-1] is None
    advanced = steps - 1  # the first pass up to the last step
    for step, start in enumerate(runs[:-1]):
        assert start is not None
        assert start <= step
        advanced += step - start
    assert advanced == forward_steps(steps, snapshots)
    for step in range(steps - 1):
        assert sum(stored(runs, step, state) for state in range(steps)) <= snapshots


def persistent(costs: ChainCosts, room: int) -> float:
    """Least time of a persistent schedule, by trying every set of stored stages on every pass."""

    @functools.cache
    def reverse(first: int, last: int, left: int) -> float:
        """Stages first .. last, the input of `first` being stored."""
        # One pass: each stage is kept whole, or its successor's input is stored, or neither.
        best = IMPOSSIBLE

        def walk(stage: int, held: int, spent: float, parts: tuple[tuple[int, int, int], ...],
                 start: int | None) -> None:  # fmt: skip
            """`start`: where the open stretch of forgotten stages began, None if there is none."""
            nonlocal best
            whole = int(costs.all_bytes[stage])
            if stage == last:
                if held + whole + costs.backward_bytes[stage] > left:
                    return
                total = spent + costs.forward_ns[stage] + costs.backward_ns[stage]
                if start is not None:
                    return
                for a, b, at in parts:
                    total += reverse(a, b, at)
                best = min(best, float(total))
                return
            # Keep it whole: only where its input is in memory, and its backward fits then.
            if start is None and held + whole + costs.backward_bytes[stage] <= left:
                walk(
                    stage + 1, held + whole,
                    spent + costs.forward_ns[stage] + costs.backward_ns[stage], parts, None,
                )  # fmt: skip
            begin = stage if start is None else start
            stored = held + int(costs.input_bytes[stage + 1])
            if stored <= left:
                walk(
                    stage + 1, stored, spent + costs.forward_ns[stage],
                    (*parts, (begin, stage, left - held)), None,
                )  # fmt: skip
            walk(stage + 1, held, spent + costs.forward_ns[stage], parts, begin)

        walk(first, 0, 0.0, (), None)
        return best

    return reverse(0, len(costs.forward_ns) - 1, room)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), length=st.integers(1, 4))
def test_rotor_is_optimal_on_small_chains(data: st.DataObject, length: int) -> None:
    """Its program finds the best persistent schedule of every budget."""

    def some(low: int, high: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([data.draw(st.integers(low, high)) for _ in range(length)], dtype=np.int64)

    enters = some(1, 4)
    costs = ChainCosts(
        forward_ns=some(1, 9), backward_ns=some(1, 9), input_bytes=enters,
        all_bytes=enters + some(0, 5),
        backward_bytes=some(0, 3),
    )  # fmt: skip
    best, cut = solve_chain(costs, 1.0, 30)
    for room in (3, 6, 10, 15, 30):
        assert best[0, length - 1, room] == persistent(costs, room)
        runs = rotor_runs(cut, costs.input_bytes, costs.all_bytes, room)
        assert (runs is None) == (best[0, length - 1, room] >= IMPOSSIBLE)


def test_costs_of_a_uniform_chain() -> None:
    """Each layer is a stage that reads one tensor and keeps one."""
    graph = linear_chain(6, size_bytes=10)
    tables = Tables.of(graph)
    chain = linearized(graph, tables, 100)[0]
    costs = ChainCosts.of(chain)
    assert set(costs.input_bytes[1:].tolist()) == {10}
    assert set(costs.all_bytes[1:-1].tolist()) == {10}
    assert costs.forward_ns.sum() + costs.backward_ns.sum() == graph.arrays.time.sum()


def test_a_long_chain_is_thinned_out() -> None:
    """No more stages than asked for, in order, the first one from the start."""
    graph = residual_chain(40)
    tables = Tables.of(graph)
    chain = Chain.of(graph, tables, range(1, tables.boundary), 10)
    assert 5 <= chain.length <= 10
    assert chain.borders[0] == 0
    assert list(chain.borders) == sorted(set(chain.borders))
    assert list(chain.entered) == sorted(chain.entered, reverse=True)
