"""The staged program counts what runs in place, and what is never made, exactly as `simulate`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide.solver.check import check
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.milp.staged import build
from lowtide.solver.milp.stages import every_op, free_tensors
from lowtide.solver.milp.starts import start_values
from lowtide.solver.plan import Status
from lowtide.solver.realise import realise_saved
from lowtide.solver.schedule import Schedule
from lowtide.solver.search.anneal import Search
from lowtide.solver.search.evaluate import DROP, KEEP
from lowtide.solver.simulate import simulate
from lowtide.solver.smallest import single_op_bound
from lowtide.solver.solve import solve
from tests.solver.brute_force import optimum
from tests.solver.strategies import graphs, schedules


def in_place() -> Graph:
    """`relu` may overwrite 48 B that `last` reads, too."""
    ops = (
        Op("linear", "mm", 1, (), (0,), phase="forward"),
        Op("relu", "relu", 0, (0,), (1,), phase="forward", overwrites=0),
        Op("backward", "lowtide.backward", 0, (), (2,), recompute=False, phase="backward"),
        Op("first", "mul", 0, (2, 1), (3,), phase="backward"),
        Op("last", "mul", 0, (3, 0), (4,), phase="backward"),
    )
    sizes = (48, 48, 4, 0, 0)
    tensors = tuple(Tensor(f"t{i}", size, output=i in (2, 4)) for i, size in enumerate(sizes))
    return Graph("in place", ops, tensors)


def two_results() -> Graph:
    """`make` runs again for 8 B; its 40 B of state serve later runs of `draw` alone."""
    ops = (
        Op("make", "rng_state", 5, (), (0, 1), phase="forward"),
        Op("draw", "dropout", 1, (0,), (2,), phase="forward", restores=0),
        Op("large", "mm", 1, (2,), (3,), phase="forward"),
        Op("backward", "lowtide.backward", 0, (3,), (4,), recompute=False, phase="backward"),
        Op("last", "mul", 1, (4, 1, 2), (5,), phase="backward"),
    )
    sizes = (40, 8, 8, 40, 4, 8)
    tensors = tuple(Tensor(f"t{i}", size, output=i in (4, 5)) for i, size in enumerate(sizes))
    return Graph("two results", ops, tensors)


@pytest.mark.parametrize("method", ["auto", "milp"])
@pytest.mark.parametrize(
    ("graph", "budget", "time_ns"), [(in_place(), 52, 2), (two_results(), 52, 13)]
)
def test_the_optimum_is_found_and_proven(
    method: str, graph: Graph, budget: int, time_ns: int
) -> None:
    """In place only if the input is made again later; without the state that nobody reads."""
    assert optimum(graph, budget) == time_ns
    plan = solve(graph, budget, method=method, order="base", gap=0.0)
    assert plan.time_ns == plan.lower_bound_ns == time_ns
    assert plan.status is Status.OPTIMAL


@pytest.mark.parametrize("lazy", [False, True])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_program_refuses_a_byte_less(lazy: bool, data: st.DataObject) -> None:
    """A schedule satisfies the program of every op at its own peak, and at no smaller budget."""
    graph = data.draw(graphs(max_ops=6))
    free = free_tensors(graph, 1, 0.0)
    count = len(graph.ops)
    known = {(base, op) for base in range(count) for op in range(base)} if lazy else None
    roomy = build(graph, 2**40, every_op(graph), free)
    computes: list[int] = []
    for base in range(count):
        useful = sorted(roomy.recompute[base])
        again = data.draw(st.sets(st.sampled_from(useful), max_size=3)) if useful else set()
        computes += [*sorted(again), base]
    peak = simulate(graph, Schedule.from_computes(graph, computes)).peak_bytes
    program = build(graph, peak, every_op(graph), free, known)
    assert start_values(program, computes) is not None
    if peak > single_op_bound(graph)[0]:  # an op alone: `solve` looks at that first
        program = build(graph, peak - 1, every_op(graph), free, known)
        assert start_values(program, computes) is None


def agrees(method: str, data: st.DataObject) -> None:
    """At the peak of some schedule, a proven plan that enumeration does not undercut."""
    graph = data.draw(graphs(max_ops=6, training=False) | graphs(max_ops=3, training=True))
    assume(2 <= len(graph.ops) <= 6)
    computes = data.draw(schedules(graph))
    budget = max(1, simulate(graph, Schedule.from_computes(graph, computes)).peak_bytes)
    expected = optimum(graph, budget)
    plan = solve(graph, budget, method=method, time_limit=60.0, gap=0.0, order="base")
    check(graph, plan)
    assert plan.peak_bytes <= budget
    assert plan.lower_bound_ns == expected == plan.time_ns
    assert plan.status is Status.OPTIMAL


@pytest.mark.parametrize("method", ["auto", "milp"])
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_plans_are_proven_to_be_as_good_as_enumeration_finds(
    method: str, data: st.DataObject
) -> None:
    """Small graphs whose ops overwrite inputs and put saved states back."""
    agrees(method, data)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "milp"])
@given(data=st.data())
@settings(max_examples=1000, deadline=None)
def test_many_plans_are_proven_to_be_as_good(method: str, data: st.DataObject) -> None:
    """The same on many more."""
    agrees(method, data)


def test_first_runs_make_nothing_again_that_only_reruns_read() -> None:
    """Neither a solution of the program, nor a rule, nor a set of kept tensors asks for it."""
    ops = (
        Op("save", "rng_state", 5, (), (0,), phase="forward"),
        Op("large", "mm", 1, (), (1,), phase="forward"),
        Op("backward", "lowtide.backward", 0, (1,), (2,), recompute=False, phase="backward"),
        Op("draw", "dropout", 1, (0, 2), (3,), phase="backward", restores=0),
        Op("last", "mul", 1, (0, 3), (4,), phase="backward", restores=0),
    )
    tensors = tuple(Tensor(f"t{i}", 8, output=i in (2, 4)) for i in range(5))
    graph = Graph("restored in backward", ops, tensors)
    search, count = Search(graph, 0), len(ops)
    once = tuple(range(count))
    assert tuple(realise_saved(graph, [1])) == once
    ends = search.arrays.gap_ptr
    rule = np.full(int(ends[-1]), KEEP, dtype=np.int8)
    rule[ends[0] : ends[1]] = DROP
    dropped = search.realise(rule)
    assert dropped is not None
    firsts = np.arange(count, dtype=np.int64)
    carried = np.zeros((count, len(tensors)), dtype=np.bool_)
    carried[2, 1] = carried[4, 3] = True
    solution = search.realise_carried(firsts, carried, np.zeros((count, count), dtype=np.bool_))
    assert solution is not None
    assert dropped.computes == solution.computes == once
