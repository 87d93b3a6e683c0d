"""The checker accepts correct plans and names every kind of violation, planted one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lowtide.solver.check import check, check_peak
from lowtide.solver.errors import CheckError
from lowtide.solver.graph import Graph, Op, Tensor

from .strategies import graphs, plan_of, with_computes

if TYPE_CHECKING:
    from lowtide.solver.plan import Plan


def chain() -> Graph:
    """w (resident) -> a -> b -> c (output, made by an op that may run only once)."""
    return Graph(
        "chain",
        (
            Op("a", "k", 2, (0,), (1,)),
            Op("b", "k", 3, (1,), (2,)),
            Op("c", "k", 4, (1, 2), (3,), recompute=False),
        ),
        (Tensor("w", 1000), Tensor("a", 1), Tensor("b", 10), Tensor("c", 100, output=True)),
    )


def refused(graph: Graph, plan: Plan) -> str:
    """Message of the refusal, which has to be one line."""
    with pytest.raises(CheckError) as caught:
        check(graph, plan)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(with_computes())
def test_correct_plans_pass(case: tuple[Graph, list[int]]) -> None:
    """Whatever `from_computes` and `simulate` say of random executions is confirmed."""
    check(case[0], plan_of(*case))


BASE = ("compute 0", "compute 1", "compute 2", "free 1", "free 2")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("compute 0", "free 1", *BASE[1:]), "step 2 computes b, whose input a is not in memory"),
        (("free 2", *BASE), "step 0 frees tensor 2, which is not in memory"),
        ((*BASE, "free 0"), "step 5 frees tensor 0, which is not in memory"),
        ((*BASE, "free 1"), "step 5 frees tensor 1, which is not in memory"),
        ((*BASE, "free 3"), "step 5 frees the output c"),
        ((*BASE[:3], "compute 2", *BASE[3:]), "step 3 runs c again, which must run only once"),
        (BASE[:2], r"op 2 \(c\) never runs"),
        ((), r"op 0 \(a\) never runs"),
        ((*BASE, "compute 3"), "step 5 is 'compute 3': no such step in chain"),
        ((*BASE, "free 4"), "step 5 is 'free 4': no such step in chain"),
        ((*BASE, "run 1"), "step 5 is 'run 1': no such step in chain"),
        ((*BASE, "compute -1"), "no such step"),
        ((*BASE, "compute"), "no such step"),
        ((*BASE, ""), "no such step"),
        ((*BASE, "compute \u0661"), "no such step"),
        ((*BASE, "free " + "9" * 5000), "no such step"),
    ],
)
def test_impossible_steps_are_named(steps: tuple[str, ...], message: str) -> None:
    """Each impossible step is refused with its position and what is wrong."""
    plan = plan_of(chain(), [0, 1, 2], steps=steps)
    with pytest.raises(CheckError, match=message):
        check(chain(), plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph_hash": "0" * 64}, "made for another graph"),
        ({"time_ns": 10}, "claims 10 ns, its schedule takes 9 ns"),
        ({"peak_bytes": 1110}, "claims a peak of 1110 B, it is 1111 B"),
        ({"base_time_ns": 8}, "claims 8 ns without recomputation, not 9"),
        ({"lower_bound_ns": 10}, "lower bound of 10 ns is above the time 9 ns"),
        ({"budget_bytes": 1110}, "peak 1111 B is above the budget 1110 B"),
    ],
)
def test_wrong_claims_are_named(change: dict[str, object], message: str) -> None:
    """Each number that a plan claims is recomputed."""
    assert message in refused(chain(), plan_of(chain(), [0, 1, 2], **change))


def test_op_times_measured_again_are_told_from_wrong_claims() -> None:
    """Where only times are others, the message says so; anything wrong with bytes comes first."""
    graph = chain()
    plan = plan_of(graph, [0, 1, 0, 2])
    again = msgspec.structs.replace(
        graph, ops=tuple(msgspec.structs.replace(op, time_ns=7 * op.time_ns) for op in graph.ops)
    )
    message = refused(again, plan)
    assert "op times of chain are others than the plan was made with (measured again?)" in message
    assert "without recomputation 63 ns, in the plan 9 ns" in message
    assert "schedule, peak and budget are right" in message
    assert "solve again" in message
    assert "replay" in message
    for change in ({"peak_bytes": 1}, {"resident_bytes": 1}, {"budget_bytes": 1}):
        assert "measured again" not in refused(again, msgspec.structs.replace(plan, **change))
    cost = msgspec.structs.replace(again, time_unit="cost")
    assert "without recomputation 63 cost, in the plan 9 cost" in refused(cost, plan)


def test_other_graph_is_refused() -> None:
    """A plan for a graph with another structure does not pass, even with the same op names."""
    graph = chain()
    other = msgspec.structs.replace(
        graph, ops=(msgspec.structs.replace(graph.ops[0], kind="other"), *graph.ops[1:])
    )
    message = refused(other, plan_of(graph, [0, 1, 2]))
    assert "capture and solve again" in message


@given(graphs(), st.data())
def test_missing_executions_are_found(graph: Graph, data: st.DataObject) -> None:
    """Leaving any single op out of a plan is noticed."""
    plan = plan_of(graph, range(len(graph.ops)))
    words = [i for i, word in enumerate(plan.steps) if word.startswith("compute")]
    drop = data.draw(st.sampled_from(words))
    steps = (*plan.steps[:drop], *plan.steps[drop + 1 :])
    refused(graph, msgspec.structs.replace(plan, steps=steps))


@given(with_computes(), st.data())
def test_missing_frees_are_found(case: tuple[Graph, list[int]], data: st.DataObject) -> None:
    """A free that comes too late changes the peak or is accepted at exactly the same peak."""
    graph, computes = case
    plan = plan_of(graph, computes)
    frees = [i for i, word in enumerate(plan.steps) if word.startswith("free")]
    assume(frees)
    drop = data.draw(st.sampled_from(frees))
    late = (*plan.steps[:drop], *plan.steps[drop + 1 :])
    if check_peak(graph, late) == plan.peak_bytes:
        check(graph, msgspec.structs.replace(plan, steps=late))
    else:
        assert "claims a peak of" in refused(graph, msgspec.structs.replace(plan, steps=late))


@given(with_computes(), st.data())
def test_early_frees_are_found(case: tuple[Graph, list[int]], data: st.DataObject) -> None:
    """A tensor that is freed twice, the first time before it is needed, is noticed."""
    graph, computes = case
    plan = plan_of(graph, computes)
    frees = [i for i, word in enumerate(plan.steps) if word.startswith("free")]
    assume(frees)
    position = data.draw(st.sampled_from(frees))
    # Before the op whose need was the last one the tensor is either still needed or not yet made.
    op = max(i for i in range(position) if plan.steps[i].startswith("compute"))
    steps = (*plan.steps[:op], plan.steps[position], *plan.steps[op:])
    refused(graph, msgspec.structs.replace(plan, steps=steps))


@given(with_computes(), st.integers(-3, 3).filter(bool))
def test_any_other_peak_is_found(case: tuple[Graph, list[int]], off: int) -> None:
    """A peak that is off by a few bytes is refused."""
    plan = plan_of(*case)
    wrong = msgspec.structs.replace(plan, peak_bytes=plan.peak_bytes + off)
    assert "claims a peak of" in refused(case[0], wrong)


@given(graphs(fixed_share=60), st.data())
def test_forbidden_recomputation_is_found(graph: Graph, data: st.DataObject) -> None:
    """Running a run-once op again is refused."""
    fixed = [i for i, op in enumerate(graph.ops) if not op.recompute]
    assume(fixed)
    op = data.draw(st.sampled_from(fixed))
    plan = plan_of(graph, [*range(len(graph.ops)), op])
    assert "which must run only once" in refused(graph, plan)


def test_overhead_and_gap() -> None:
    """Overhead is relative to the base time, the gap to the whole time of the schedule."""
    plan = plan_of(chain(), [0, 1, 0, 2], lower_bound_ns=9)
    assert plan.overhead == pytest.approx(2 / 9)
    assert plan.gap == pytest.approx(2 / 11)
    assert plan_of(chain(), [0, 1, 2]).gap is None
