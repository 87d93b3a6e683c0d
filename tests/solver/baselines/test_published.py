"""The systems of the literature as methods: valid schedules, and never better than `auto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import MIB, linear_chain, residual_chain, transformer, unet
from lowtide.frontends.generated import random_graph
from lowtide.solver.baselines import PUBLISHED, SAVERS, STARTS, NotApplicableError, checkmate
from lowtide.solver.check import check
from lowtide.solver.compare import compare
from lowtide.solver.control import Control
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.graph import Tensor
from lowtide.solver.schedule import Schedule
from lowtide.solver.search.anneal import Search
from lowtide.solver.simulate import Simulation, simulate
from lowtide.solver.smallest import baseline_starts, smallest_found
from lowtide.solver.solve import solve

from ..strategies import graphs, plan_of

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph

PROGRAMS = ("checkmate", "checkmate_lp", "moccasin")
QUICK = tuple(name for name in PUBLISHED if name not in PROGRAMS)
GRAPHS = {
    graph.name: graph for graph in (linear_chain(24), residual_chain(6), unet(3), transformer(3))
}


def run(graph: Graph, name: str, budget: int | None, seconds: float = 20.0) -> Simulation | None:
    """Check what a method returns and simulate it; None where it does not apply."""
    try:
        schedule = PUBLISHED[name](graph, budget, Control(seconds))
    except NotApplicableError:
        return None
    assert schedule is not None
    check(graph, plan_of(graph, schedule.computes()))
    return simulate(graph, schedule)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_budgets_are_met_or_the_smallest_peak_is_returned(graph: Graph, name: str) -> None:
    """Nothing is recomputed where everything fits; less memory never takes less time."""
    base = simulate(graph, Schedule.keep_everything(graph))
    everything = run(graph, name, base.peak_bytes)
    assert everything is None or everything.time_ns == base.time_ns
    times = []
    for share in (0.9, 0.7, 0.5):
        budget = graph.resident_bytes + int(share * (base.peak_bytes - graph.resident_bytes))
        found = run(graph, name, budget)
        if found is not None and found.peak_bytes <= budget:
            times.append(found.time_ns)
    if name not in ("dtr", "dtr_eq", "lru"):  # greedy and online, they may be lucky with less
        assert times == sorted(times)


@pytest.mark.parametrize("name", ["rotor", "kusumoto", "revolve", "ap_greedy", "dtr_eq"])
def test_methods_save_memory_on_chains(name: str) -> None:
    """Half of what can be saved is within reach of each."""
    graph = linear_chain(24)
    base = simulate(graph, Schedule.keep_everything(graph))
    found = run(graph, name, base.peak_bytes // 2)
    assert found is not None
    assert found.peak_bytes <= base.peak_bytes // 2
    assert base.time_ns < found.time_ns < 1.5 * base.time_ns


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=15, deadline=None)
@given(graph=graphs(max_ops=6), share=st.floats(0.0, 1.0))
def test_valid_on_random_graphs(name: str, graph: Graph, share: float) -> None:
    """Several outputs, run-once ops, outputs in the forward, dead results: nothing breaks them."""
    base = simulate(graph, Schedule.keep_everything(graph))
    budget = graph.resident_bytes + int(share * (base.peak_bytes - graph.resident_bytes))
    found = run(graph, name, budget, 2.0)
    if found is not None:
        assert found.peak_bytes <= max(budget, base.peak_bytes)


@settings(max_examples=20, deadline=None)
@given(graph=graphs(max_ops=7), share=st.floats(0.3, 0.95))
def test_auto_is_never_beaten(graph: Graph, share: float) -> None:
    """No method is faster within a budget, and none fits where `auto` finds nothing."""
    base = simulate(graph, Schedule.keep_everything(graph))
    budget = graph.resident_bytes + int(share * (base.peak_bytes - graph.resident_bytes))
    if budget == 0:
        return  # nothing has any size
    try:
        best = solve(graph, budget, gap=0.0, time_limit=20.0).time_ns
    except (InfeasibleError, NoPlanError):
        best = None
    for name in QUICK:
        found = run(graph, name, budget)
        if found is not None and found.peak_bytes <= budget:
            assert best is not None, name
            assert best <= found.time_ns, name


@pytest.mark.parametrize("name", [*STARTS, *SAVERS])
def test_search_starts_from_the_smallest_peaks_of_the_literature(name: str) -> None:
    """Before the first move nothing that `auto` starts from is smaller, or meets a budget alone."""
    graph = linear_chain(120)
    found = run(graph, name, None)
    assert found is not None
    room = found.peak_bytes - graph.resident_bytes
    assert smallest_found(graph, 0, Control(), enough=2**62).peak <= room
    starts = baseline_starts(graph, Search(graph, 0), found.peak_bytes, Control())
    assert min(start.time for _, start in starts if start.peak <= room) <= found.time_ns


@pytest.mark.parametrize("share", [0.9, 0.7, 0.6])
def test_published_program_and_sparse_form_agree(share: float) -> None:
    """Checkmate's program as printed has the optimum of the form that lowtide solves."""
    graph = linear_chain(6)
    base = simulate(graph, Schedule.keep_everything(graph))
    budget = int(share * base.peak_bytes)
    sparse = solve(graph, budget, method="milp", gap=1e-6)
    printed = run(graph, "checkmate", budget, 60.0)
    assert printed is not None
    assert printed.peak_bytes <= budget
    assert printed.time_ns == sparse.time_ns > base.time_ns


@pytest.mark.parametrize("share", [0.9, 0.8, 0.7])
def test_retention_intervals_have_the_same_optimum(share: float) -> None:
    """Two intervals a node suffice on a short chain."""
    graph = linear_chain(6)
    budget = int(share * simulate(graph, Schedule.keep_everything(graph)).peak_bytes)
    sparse = solve(graph, budget, method="milp", gap=1e-6)
    found = run(graph, "moccasin", budget, 60.0)
    assert found is not None
    assert found.peak_bytes <= budget
    assert found.time_ns == sparse.time_ns


@pytest.mark.parametrize("share", [0.95, 0.85])
@pytest.mark.parametrize("name", ["checkmate", "moccasin"])
def test_of_ops_with_outputs_of_the_step_only_those_stay(name: str, share: float) -> None:
    """A gradient beside that of a weight leaves memory, as everywhere else in lowtide."""
    graph = linear_chain(6)
    ops, tensors = list(graph.ops), list(graph.tensors)
    for place, op in enumerate(ops):
        if op.phase == "backward" and not any(tensors[t].output for t in op.outputs):
            tensors.append(Tensor(f"{op.name}.weight", MIB // 16, output=True))
            ops[place] = msgspec.structs.replace(op, outputs=(*op.outputs, len(tensors) - 1))
    graph = msgspec.structs.replace(graph, ops=tuple(ops), tensors=tuple(tensors))
    assert len(graph.tensors) > len(linear_chain(6).tensors) + 3
    base = simulate(graph, Schedule.keep_everything(graph))
    budget = graph.resident_bytes + int(share * (base.peak_bytes - graph.resident_bytes))
    sparse = solve(graph, budget, method="milp", gap=1e-6)
    found = run(graph, name, budget, 60.0)
    assert found is not None
    assert found.peak_bytes <= budget
    assert found.time_ns == sparse.time_ns > base.time_ns


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_need_a_budget_and_a_graph_of_moderate_size(name: str) -> None:
    """They refuse by name instead of running out of memory."""
    with pytest.raises(NotApplicableError, match="needs a budget"):
        PUBLISHED[name](linear_chain(3), None)
    if name != "checkmate_lp":
        with pytest.raises(NotApplicableError, match="more than 700"):
            PUBLISHED[name](linear_chain(400), 0)


def test_a_program_that_is_read_for_longer_than_the_time_is_not_begun() -> None:
    """HiGHS cannot be stopped while it takes a program in, which takes minutes for 400 ops."""
    graph = linear_chain(60)
    budget = simulate(graph, Schedule.keep_everything(graph)).peak_bytes // 2
    with pytest.raises(NoPlanError, match="reads the"):
        PUBLISHED["checkmate"](graph, budget, Control(1.0))


def test_groups_of_methods_in_a_comparison() -> None:
    """`published` stands for all of them; each has a row, or a reason."""
    graph = linear_chain(5)
    found = compare(graph, ["70%"], "published", time_limit=5.0)
    assert [row.method for row in found.rows] == list(PUBLISHED)
    assert all(row.plan is not None or row.reason for row in found.rows)


def test_rounding_ends_with_the_time_while_its_program_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The base order is what there is then; nothing is solved."""
    monkeypatch.setattr(checkmate, "Highs", lambda: pytest.fail("solved"))
    graph = random_graph(5, 24, training=True)
    assert len(list(checkmate._rounded(graph, 10**6, Control(0.0)))) == 1
