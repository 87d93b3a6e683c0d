"""`plan_blocks`: within the budget, better than the heuristics when tight, and it keeps time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import residual_network, transformer
from lowtide.solver.baselines import BASELINES
from lowtide.solver.blocks.plan import find_chains, plan_blocks
from lowtide.solver.check import check
from lowtide.solver.control import Control
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve

from ..strategies import graphs, plan_of
from .chains import Looks

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


@settings(max_examples=30, deadline=None)
@given(graphs(training=True, max_ops=12), st.sampled_from((0.5, 0.7, 0.9)))
def test_plans_of_any_graph_are_valid(graph: Graph, share: float) -> None:
    """Whatever is taken for blocks: what comes out passes the checker within the budget."""
    base = simulate(graph, Schedule.keep_everything(graph))
    room = int(share * (base.peak_bytes - graph.resident_bytes))
    found = plan_blocks(graph, room, Control())
    if found is not None:
        check(graph, plan_of(graph, found.computes))
        result = simulate(graph, Schedule.from_computes(graph, found.computes))
        assert result.peak_bytes - graph.resident_bytes == found.peak <= room
        assert result.time_ns == found.time


@pytest.mark.parametrize("graph", [transformer(12), residual_network(100)], ids=lambda g: g.name)
def test_no_slower_than_segments_at_their_own_peak(graph: Graph) -> None:
    """At the smallest peak of sqrt_n and of per_block, blocks take no more time than those."""
    for name in ("sqrt_n", "per_block"):
        schedule = BASELINES[name](graph, None)
        assert schedule is not None
        reached = simulate(graph, schedule)
        found = plan_blocks(graph, reached.peak_bytes - graph.resident_bytes, Control())
        assert found is not None
        assert found.time <= reached.time_ns


def test_memory_of_the_root_for_one_forward() -> None:
    """Four times the layers, twice the memory, about one more forward run."""
    chains = {layers: residual_network(layers) for layers in (50, 200)}
    reached = simulate(chains[50], BASELINES["sqrt_n"](chains[50], None) or ())
    room = reached.peak_bytes - chains[50].resident_bytes
    for layers, graph in chains.items():
        found = plan_blocks(graph, int(room * math.sqrt(layers / 50)), Control())
        assert found is not None
        base = sum(op.time_ns for op in graph.ops)
        forward = sum(op.time_ns for op in graph.ops if op.phase == "forward")
        assert found.time - base <= 1.05 * forward


def test_the_same_seed_gives_the_same_schedule() -> None:
    """Nothing depends on the clock or on the order of sets."""
    graph = transformer(6)
    base = simulate(graph, Schedule.keep_everything(graph))
    room = int(0.6 * (base.peak_bytes - graph.resident_bytes))
    first, second = (plan_blocks(graph, room, Control(), seed=3) for _ in range(2))
    assert first is not None
    assert first == second


def test_work_ends_when_time_is_over() -> None:
    """After the deadline no block is solved and no table filled; what was found is returned."""
    graph = residual_network(100)
    base = simulate(graph, Schedule.keep_everything(graph))
    room = int(0.5 * (base.peak_bytes - graph.resident_bytes))
    results = []
    for looks in (1, 5, 20, 10**6):
        control = Looks(looks)
        results.append(plan_blocks(graph, room, control))
        assert control.left >= -8  # asked a few times more on the way out
    assert results[0] is None
    assert results[-1] is not None


def test_looks_do_not_grow_with_depth() -> None:
    """The number of distinct blocks to solve hardly grows as the network deepens."""
    counts = []
    for layers in (100, 400):
        chains = list(find_chains(residual_network(layers), Control()))
        counts.append(sum(len(chain.blocks) for chain in chains))
    assert counts[1] <= 2 * counts[0]


def test_solve_hears_of_blocks() -> None:
    """A budget that only compositions of blocks reach at once is met through them."""
    graph = residual_network(100)
    reached = simulate(graph, BASELINES["sqrt_n"](graph, None) or ())
    room = int(0.6 * (reached.peak_bytes - graph.resident_bytes))
    notes: list[str] = []

    class Listener:
        def update(self, event: object) -> None:
            notes.append(str(getattr(event, "note", "")))

    plan = solve(graph, graph.resident_bytes + room, time_limit=8.0, progress=Listener())
    assert plan.peak_bytes <= graph.resident_bytes + room
    assert "repeated blocks" in notes
