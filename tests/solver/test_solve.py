"""`solve` with every method: validity, optimality, bounds and refusals."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import random_layered
from lowtide.frontends.generated import random_graph
from lowtide.solver.assemble import Origin, assemble
from lowtide.solver.baselines import BASELINES
from lowtide.solver.check import check
from lowtide.solver.control import Control
from lowtide.solver.errors import CheckError, InfeasibleError, InputError, LowtideError, NoPlanError
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.incumbent import keeps_order
from lowtide.solver.plan import Plan, Status, Stop
from lowtide.solver.refusals import MOST_IF_PROVEN
from lowtide.solver.schedule import Schedule
from lowtide.solver.search.anneal import Search
from lowtide.solver.search.sequence import SequenceSearch
from lowtide.solver.simulate import simulate
from lowtide.solver.smallest import (
    baseline_starts,
    single_op_bound,
    smallest_budget,
    smallest_found,
)
from lowtide.solver.solve import METHODS, solve
from lowtide.solver.units import parse_budget
from tests.solver.brute_force import optimum
from tests.solver.chains import mirrored_chain, recompute_all
from tests.solver.strategies import graphs, in_class

if TYPE_CHECKING:
    from lowtide.solver.progress import Event
    from lowtide.solver.search.anneal import Found


def no_recompute_peak(graph: Graph) -> int:
    """Peak of the base order, resident bytes included."""
    return simulate(graph, Schedule.keep_everything(graph)).peak_bytes


def attempt(graph: Graph, budget: int, method: str) -> Plan | None:
    """A plan, or None where the budget is infeasible."""
    try:
        return solve(graph, budget, method=method, time_limit=60.0, gap=0.0, order="base")
    except InfeasibleError:
        return None


@given(graph=graphs(max_ops=3, training=True), share=st.integers(30, 99))
@settings(max_examples=25, deadline=None)
def test_auto_and_milp_find_the_optimum(graph: Graph, share: int) -> None:
    """On tiny graphs both methods agree with enumeration, also on what is infeasible."""
    if len(graph.ops) > 6:
        return
    budget = max(1, no_recompute_peak(graph) * share // 100)
    expected = optimum(graph, budget)
    for method in ("auto", "milp"):
        plan = attempt(graph, budget, method)
        if expected is None:  # but outside of the class there may be one
            assert plan is None or not in_class(plan.schedule.computes())
            continue
        assert plan is not None
        assert plan.time_ns == expected
        assert plan.status is Status.OPTIMAL


@given(graph=graphs(max_ops=10), share=st.integers(40, 99))
@settings(max_examples=25, deadline=None)
def test_order_of_bound_optimum_and_heuristics(graph: Graph, share: int) -> None:
    """Bound <= optimum <= every heuristic, every plan checked and within its budget."""
    budget = max(1, no_recompute_peak(graph) * share // 100)
    best = attempt(graph, budget, "auto")
    for method in BASELINES:
        try:
            plan = solve(graph, budget, method=method)
        except LowtideError:
            continue
        check(graph, plan)
        assert plan.peak_bytes <= budget
        assert best is not None
        assert best.lower_bound_ns <= best.time_ns <= plan.time_ns
    if best is not None:
        check(graph, best)
        assert best.peak_bytes <= budget


@pytest.mark.parametrize("backend", ["highs", "cpsat", "ortools", "pulp"])
@pytest.mark.parametrize("seed", [3, 5, 11])
def test_backends_agree(backend: str, seed: int) -> None:
    """Every backend proves the same optimum, through both methods."""
    graph = random_graph(seed, 16, training=True)
    budget = int(no_recompute_peak(graph) * 0.8)
    reference = solve(graph, budget, method="milp", gap=1e-6)
    for method in ("auto", "milp"):
        plan = solve(graph, budget, method=method, backend=backend, gap=1e-6, order="base")
        assert plan.time_ns == reference.time_ns
        assert plan.status == Status.OPTIMAL


@pytest.mark.parametrize("method", [name for name in METHODS if name != "per_block"])
def test_a_large_budget_needs_no_recomputation(method: str) -> None:
    """With room for everything, the optimum is the base order."""
    graph = random_graph(1, 20, training=True)
    plan = solve(graph, "max", method=method)
    assert plan.schedule.recomputes() == 0
    assert plan.overhead == 0.0
    if method in ("auto", "milp"):
        assert plan.status == Status.OPTIMAL


def test_percentages_are_of_what_can_be_saved() -> None:
    """`60%` is resident + 60% of the rest."""
    graph = random_graph(2, 20, training=True)
    plan = solve(graph, "90%")
    peak, resident = no_recompute_peak(graph), graph.resident_bytes
    assert plan.budget_bytes == resident + int((peak - resident) * 0.9)


def test_infeasible_says_the_smallest_budget() -> None:
    """The refusal names a budget that then works, and the op that sets it."""
    graph = random_graph(5, 24, training=True)
    with pytest.raises(InfeasibleError) as caught:
        solve(graph, graph.resident_bytes + 1)
    error = caught.value
    assert error.proven
    assert error.smallest_bytes is not None
    assert error.limiting_op is not None
    assert error.limiting_op.split(" ")[0] in {op.name for op in graph.ops}
    assert "\n" not in str(error)
    plan = solve(graph, error.smallest_bytes, time_limit=60.0, gap=0.9)
    assert plan.peak_bytes <= error.smallest_bytes
    assert error.smallest_bytes >= single_op_bound(graph)[0]
    share = re.search(r", or ([\d.]+%) as a budget\)", str(error))
    assert share is not None
    resident, peak = graph.resident_bytes, no_recompute_peak(graph)
    named = parse_budget(share.group(1), resident_bytes=resident, peak_bytes=peak)
    assert error.smallest_bytes <= named <= error.smallest_bytes + 0.001 * (peak - resident) + 1


def test_a_hopeless_budget_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one op needs is told before anything is searched, and the search is short."""
    graph = random_graph(3, 60, training=True)
    floor, op = single_op_bound(graph, any_order=True)
    news: list[str] = []
    limits: list[float] = []

    def noted(of: Graph, seed: int, control: Control, **options: Any) -> Found:
        limits.append(control.remaining)
        assert f"{graph.ops[op].name} alone needs" in news[0]
        return smallest_found(of, seed, control, **options)

    def starts(*_: object) -> None:
        pytest.fail("nothing that a start could be good for")

    class Heard:
        def update(self, event: Event) -> None:
            news.append(event.note)

    monkeypatch.setattr("lowtide.solver.refusals.smallest_found", noted)
    monkeypatch.setattr("lowtide.solver.solve._starts", starts)
    with pytest.raises(InfeasibleError) as caught:
        solve(graph, floor - 1, time_limit=1000.0, progress=Heard())
    assert caught.value.proven
    (limit,) = limits
    assert limit <= MOST_IF_PROVEN


def test_inputs_that_cannot_come_together_are_refused_before_any_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every op fits by itself, but not beside the other input that its reader finds in memory."""
    sizes = (10, 1, 10, 1, 1)
    reads: tuple[tuple[int, ...], ...] = ((), (0,), (), (2,), (1, 3))
    ops = tuple(Op(f"op{i}", "", 1, reads[i], (i,)) for i in range(5))
    graph = Graph("two", ops, tuple(Tensor(f"t{i}", size) for i, size in enumerate(sizes)))

    def programs(*_: object) -> None:
        pytest.fail("the pebble game has shown it already")

    monkeypatch.setattr("lowtide.solver.solve.auto", programs)
    with pytest.raises(InfeasibleError, match=r"at least 12 B \(12 B\) are needed") as caught:
        solve(graph, 11)
    assert caught.value.proven
    assert caught.value.smallest_bytes == 12


def test_a_plan_prints_as_one_line() -> None:
    """What it is for, what it takes and what it costs; the steps are in `repr`."""
    plan = solve(random_graph(2, 20, training=True), "max", method="keep_everything")
    assert str(plan).startswith(f"plan of {plan.graph_name} by keep_everything: peak ")
    assert str(plan).endswith(f"overhead 0.000%, {plan.status.value}")


def test_a_budget_that_a_refusal_named_gets_the_same_search_and_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No heuristic meets it: the search comes first, alone, and ends once it is there."""
    graph = random_graph(3, 60, training=True)
    searches: list[tuple[float, set[str]]] = []

    def noted(of: Graph, seed: int, control: Control, **options: Any) -> Found:
        names = {thread.name for thread in threading.enumerate() if "_guarded" in thread.name}
        searches.append((control.remaining, names))
        return smallest_found(of, seed, control, **options)

    monkeypatch.setattr("lowtide.solver.refusals.smallest_found", noted)
    monkeypatch.setattr("lowtide.solver.auto.smallest_found", noted)
    with pytest.raises(InfeasibleError) as caught:
        solve(graph, graph.resident_bytes + 1, time_limit=10.0)
    budget = caught.value.smallest_bytes
    assert budget is not None
    search = Search(graph, 0)
    quick = baseline_starts(graph, search, budget, Control())
    assert min(found.peak for _, found in quick) + graph.resident_bytes > budget
    assert solve(graph, budget, time_limit=8.0, gap=0.99).peak_bytes <= budget
    (refused, _), (again, beside) = searches[:2]
    assert again > 1.5 * refused
    assert not beside


def test_the_way_to_the_smallest_peak_is_the_same_up_to_what_is_enough() -> None:
    """Aimed at the same bytes, it only ends earlier."""
    graph = random_graph(3, 60, training=True)
    whole = smallest_found(graph, 0, Control())
    again = smallest_found(graph, 0, Control(), enough=whole.peak)
    assert again.peak == whole.peak
    assert smallest_found(graph, 0, Control(), enough=2 * whole.peak).peak <= 2 * whole.peak


def test_smallest_budget_is_reachable() -> None:
    """`smallest_budget` gives a budget for which a plan exists."""
    graph = random_graph(9, 30, training=True)
    budget = smallest_budget(graph, time_limit=5.0)
    assert solve(graph, budget, time_limit=60.0, gap=0.9).peak_bytes <= budget


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic"}, "no method 'magic'"),
        ({"backend": "gurobiX"}, "no backend 'gurobiX'"),
        ({"backend": "pulp:NOPE_CMD"}, "no solver 'NOPE_CMD'"),
        ({"time_limit": 0.0}, "time limit"),
        ({"gap": 1.0}, "gap"),
        ({"threads": 0}, "threads"),
        ({"threads": 100_000}, "threads must be at most"),
        ({"budget": "lots"}, "budget 'lots'"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, object], words: str) -> None:
    """A wrong option is an InputError that names it."""
    graph = random_graph(5, 24, training=True)
    arguments: dict[str, object] = {"budget": "75%", **options}
    with pytest.raises(InputError, match=words) as caught:
        solve(graph, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_empty_graph_is_refused() -> None:
    """A graph without ops has nothing to plan."""
    with pytest.raises(InputError, match="no ops"):
        solve(Graph("empty", (), ()), "50%")


def test_no_plan_in_time() -> None:
    """When time passes before a schedule is found, the error says what was seen."""
    graph = random_graph(7, 120, training=True)
    floor, _ = single_op_bound(graph)
    with pytest.raises((NoPlanError, InfeasibleError)) as caught:
        solve(graph, floor, time_limit=0.01)
    assert "\n" not in str(caught.value)


def test_same_seed_same_plan() -> None:
    """Two solves with the same seed give the same steps."""
    graph = random_graph(12, 40, training=True)
    first, second = (solve(graph, "70%", seed=4) for _ in range(2))
    assert first.steps == second.steps


def test_start_from_a_plan() -> None:
    """A plan of a smaller budget is an incumbent for a larger one; another graph's is refused."""
    graph = random_graph(12, 40, training=True)
    small = solve(graph, "70%")
    large = solve(graph, "80%", start=small)
    assert large.time_ns <= small.time_ns
    with pytest.raises(InputError, match="another graph"):
        solve(random_graph(13, 40, training=True), "80%", start=small)


def test_progress_hears_of_incumbents_and_bounds() -> None:
    """Events come in order, incumbents only fall and bounds only rise."""
    events: list[Event] = []

    class Recorder:
        def update(self, event: Event) -> None:
            events.append(event)

    plan = solve(random_graph(12, 40, training=True), "70%", progress=Recorder())
    incumbents = [e.incumbent_ns for e in events if e.incumbent_ns is not None]
    bounds = [e.bound_ns for e in events if e.bound_ns is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    assert bounds == sorted(bounds)
    assert incumbents[-1] == plan.time_ns


def test_solve_in_a_thread() -> None:
    """Outside the main thread there is no signal handler to set, and solving still works."""
    graph = random_graph(12, 30, training=True)
    plans: list[Plan] = []
    thread = threading.Thread(target=lambda: plans.append(solve(graph, "80%")))
    thread.start()
    thread.join()
    assert plans[0].peak_bytes <= plans[0].budget_bytes


@pytest.mark.parametrize("method", ["auto", "milp"])
def test_time_limit_returns_the_best_so_far(method: str) -> None:
    """A short limit ends soon, with a plan that says why it stopped."""
    graph = random_graph(21, 150, training=True)
    solve(random_graph(1, 10, training=True), "90%")  # compile outside the limit
    begun = time.monotonic()
    plan = solve(graph, "75%", method=method, time_limit=3.0, gap=0.0)
    assert time.monotonic() - begun < 20.0
    assert plan.stopped_by in (Stop.TIME_LIMIT, Stop.DONE)
    assert plan.peak_bytes <= plan.budget_bytes


def test_zero_times_are_planned() -> None:
    """A graph without any times still gets a schedule within the budget."""
    graph = random_graph(3, 30, training=True)
    ops = tuple(msgspec.structs.replace(op, time_ns=0) for op in graph.ops)
    free = Graph("free", ops, graph.tensors)
    plan = solve(free, int(no_recompute_peak(free) * 0.9))
    assert plan.time_ns == 0
    assert plan.peak_bytes <= plan.budget_bytes


def test_sums_beyond_64_bits_are_refused() -> None:
    """Sizes or times whose sums would overflow are bad input, in one line."""
    with pytest.raises(InputError, match="larger units"):
        Graph("huge", (Op("a", "a", 2**61, (), (0,)),), (Tensor("x", 1),))
    with pytest.raises(InputError, match="larger units"):
        Graph("huge", (Op("a", "a", 1, (), (0,)),), (Tensor("x", 2**62),))


def test_check_refuses_other_resident_bytes() -> None:
    """Resident bytes that are not the graph's are a violation."""
    graph = random_graph(3, 30, training=True)
    plan = solve(graph, "90%")
    wrong = msgspec.structs.replace(plan, resident_bytes=plan.resident_bytes + 1)
    with pytest.raises(CheckError, match="resident"):
        check(graph, wrong)


def test_another_order_can_beat_the_base_order() -> None:
    """A plan below the bound of the base order claims what holds in any order."""
    graph = random_layered(60, seed=1)
    budget = int(no_recompute_peak(graph) * 0.85)
    fixed = solve(graph, budget, order="base")
    free = solve(graph, budget, order="any")
    assert keeps_order(fixed.schedule.computes())
    assert fixed.status == Status.OPTIMAL
    assert free.time_ns < fixed.lower_bound_ns
    assert not keeps_order(free.schedule.computes())
    assert free.base_time_ns <= free.lower_bound_ns <= free.time_ns
    assert free.bound_class == "all schedules"
    assert free.base_order_bound_ns > free.time_ns
    check(graph, free)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_moves_repeat(threads: int) -> None:
    """With a number of moves the plan is the same whatever the time limit, if that is not met."""
    for graph in (random_layered(30, seed=2), random_graph(7, 40, training=True)):
        budget = int(no_recompute_peak(graph) * 0.8)
        plans = [
            solve(graph, budget, threads=threads, moves=20_000, seed=5, time_limit=limit)
            for limit in (600.0, 60.0)
        ]
        assert plans[0].stopped_by == plans[1].stopped_by == Stop.DONE
        assert plans[0].steps == plans[1].steps


def test_starts_from_plans_of_any_length() -> None:
    """A plan that runs ops dozens of times is a start like any other."""
    graph = mirrored_chain(64)
    nested = recompute_all(graph)
    peak = simulate(graph, Schedule.from_computes(graph, nested)).peak_bytes
    long = assemble(graph, peak, nested, Origin("test", 0, 1, 0.0))
    plan = solve(graph, peak, start=long, time_limit=2.0)
    assert plan.time_ns <= long.time_ns
    assert plan.peak_bytes <= peak


def test_a_failing_companion_costs_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the search beside the integer programs breaks down, a warning says so; the plan stays."""

    class Broken(SequenceSearch):
        def improve(self, *_: object, **__: object) -> Found:
            raise ValueError("broken on purpose")

    graph = random_graph(3, 16, training=True)
    monkeypatch.setattr("lowtide.solver.search.beside.SequenceSearch", Broken)
    with pytest.warns(UserWarning, match="broken on purpose") as told:
        plan = solve(graph, int(no_recompute_peak(graph) * 0.8), threads=2)
    assert told[0].filename == __file__
    check(graph, plan)


@given(graph=graphs(max_ops=10))
@settings(max_examples=60, deadline=None)
def test_bound_of_single_ops_in_any_order(graph: Graph) -> None:
    """It is the largest need of an op with the outputs that it depends on, or all outputs."""
    arrays = graph.arrays
    before: list[set[int]] = []
    needs = [sum(t.size_bytes for i, t in enumerate(graph.tensors) if is_output(graph, i))]
    for op in range(len(graph.ops)):
        read, made = set(arrays.first_inputs(op).tolist()), set(arrays.made(op).tolist())
        makers = {int(arrays.producer[t]) for t in arrays.inputs(op)}
        ancestors = makers.union(*(before[p] for p in makers))
        before.append(ancestors)
        kept = {t for p in ancestors for t in arrays.outputs(p).tolist() if is_output(graph, t)}
        live = read | made | kept
        own = int(arrays.workspace[op] - arrays.credit[op])
        needs.append(own + sum(graph.tensors[t].size_bytes for t in live))
    assert single_op_bound(graph, any_order=True)[0] == max(needs) + graph.resident_bytes


def is_output(graph: Graph, tensor: int) -> bool:
    """Whether a tensor is made and stays to the end."""
    return graph.tensors[tensor].output and int(graph.arrays.producer[tensor]) >= 0


@pytest.mark.parametrize("seed", [-1, 2**31, 10**23])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    """One line that says what a seed may be."""
    with pytest.raises(InputError, match="seed must be"):
        solve(random_graph(1, 8, training=True), "max", seed=seed)


def test_what_smallest_budget_finds_is_found_again() -> None:
    """Here no other search meets it, and the base order cannot: the same search must run again."""
    graph = random_graph(2, 30, training=True)
    budget = smallest_budget(graph)
    assert solve(graph, budget, time_limit=20.0, gap=0.99).peak_bytes <= budget


def test_milp_takes_what_is_outside_of_its_class() -> None:
    """Ops that run again in another order than the base order's can meet a smaller budget."""
    sizes = (0, 0, 8, 62, 53, 13, 23, 54, 4, 42, 21, 22, 21)
    io: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((), (2, 3)), ((3,), (4,)), ((2, 4), (5,)), ((), (6, 7)), ((), (8,)), ((8,), ()),
        ((8, 5), (9, 10)), ((10, 4), (11,)), ((9, 11, 2), (12,)),
    )  # fmt: skip
    work = (0, 0, 0, 0, 0, 59, 63, 0, 0)
    ops = tuple(
        Op(f"op{i}", "", i + 1, reads, makes, workspace_bytes=work[i], recompute=i not in (4, 7))
        for i, (reads, makes) in enumerate(io)
    )
    tensors = tuple(Tensor(f"t{i}", s, output=i in (8, 12)) for i, s in enumerate(sizes))
    graph = Graph("order", ops, tensors)
    again = [0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 6, 0, 8]
    peak = simulate(graph, Schedule.from_computes(graph, again)).peak_bytes
    plan = solve(graph, peak, method="milp", time_limit=5.0)
    assert plan.peak_bytes <= peak
