"""What is proven at one budget holds at smaller ones, for the schedules that it speaks of."""

from __future__ import annotations

import pytest

from lowtide.frontends.chains import linear_chain
from lowtide.solver import compare as module
from lowtide.solver.assemble import ANY_ORDER_CLASS, BASE_ORDER_CLASS, Origin, assemble
from lowtide.solver.bounds import carry, claims, proven
from lowtide.solver.check import check
from lowtide.solver.comparison import NO_PLAN, Row
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.plan import Plan, Status, Stop
from lowtide.solver.sweep import agree
from tests.plans import plan_of, recomputing

# Two ops that need nothing of each other, and one that reads both; times 100, 50 and 50.
GRAPH = Graph(
    "fork",
    (Op("a", "k", 100, (), (0,)), Op("b", "k", 50, (), (1,)), Op("c", "k", 50, (0, 1), (2,))),
    (Tensor("x", 4), Tensor("y", 4), Tensor("z", 4, output=True)),
)
IN_ORDER, OTHER = (0, 1, 0, 2), (1, 0, 0, 2)  # both take 300 where 200 would do
LARGE, SMALL = 40, 20


def row(
    budget: int,
    computes: tuple[int, ...],
    bound: int,
    any_order: int = 0,
    *,
    method: str = "milp",
    stop: Stop = Stop.TIME_LIMIT,
) -> Row:
    """A plan of that order with bounds in the base order and in any."""
    told = Origin(method, 0, 1, 1.0, stop, bound, 1e-4, any_order_ns=any_order)
    plan = assemble(GRAPH, budget, computes, told)
    return Row(method, f"{budget}", budget, plan.status.value, plan, 1.0, stop.value)


def plan_in(found: Row) -> Plan:
    """Its plan, which the checker accepts."""
    assert found.plan is not None
    check(GRAPH, found.plan)
    return found.plan


def test_a_bound_comes_down_to_smaller_budgets() -> None:
    """In whatever order the rows stand; larger budgets are told nothing."""
    rows = [row(SMALL, IN_ORDER, 200), row(LARGE, IN_ORDER, 230), row(60, IN_ORDER, 210)]
    found = [plan_in(one) for one in carry(GRAPH, rows, 1e-4)]
    assert [plan.lower_bound_ns for plan in found] == [230, 230, 210]
    assert [plan.bound_class for plan in found] == [BASE_ORDER_CLASS] * 3
    assert [plan.stopped_by for plan in found] == [Stop.TIME_LIMIT] * 3


def test_a_bound_that_meets_the_time_makes_the_plan_optimal() -> None:
    """The row says so, and no longer that time ran out."""
    (found, _) = carry(GRAPH, [row(SMALL, IN_ORDER, 200), row(LARGE, IN_ORDER, 300)], 1e-4)
    assert (found.status, found.reason) == (Status.OPTIMAL.value, "")
    assert plan_in(found).stopped_by is Stop.DONE


def test_what_holds_in_the_base_order_says_nothing_of_others() -> None:
    """A plan in another order, below the base order's bound, is told what holds in any order."""
    other = row(SMALL, OTHER, 310, 200)
    assert proven(plan_in(other)) == (200, 310)
    (found, _) = carry(GRAPH, [other, row(LARGE, IN_ORDER, 250)], 1e-4)
    assert found is other
    (found, _) = carry(GRAPH, [other, row(LARGE, OTHER, 305, 240)], 1e-4)
    plan = plan_in(found)
    assert (plan.lower_bound_ns, plan.bound_class) == (240, ANY_ORDER_CLASS)
    assert plan.base_order_bound_ns == 310


def test_what_holds_in_any_order_holds_in_the_base_order() -> None:
    """An any-order bound at a larger budget raises that of a plan in the base order."""
    (found, _) = carry(GRAPH, [row(SMALL, IN_ORDER, 200), row(LARGE, OTHER, 305, 240)], 1e-4)
    assert plan_in(found).lower_bound_ns == 300  # 305 in the base order, but no more than its time


def test_rows_without_a_bound_and_other_methods_stay() -> None:
    """A heuristic proves nothing, and no method is told what another one proved."""
    large = row(LARGE, IN_ORDER, 230)
    rows = [
        row(SMALL, IN_ORDER, -1),
        row(SMALL, IN_ORDER, 200, method="auto"),
        Row("milp", "10", 10, NO_PLAN, None, 1.0),
        large,
    ]
    assert all(new is old for new, old in zip(carry(GRAPH, rows, 1e-4), rows, strict=True))


def test_independent_rows_are_told_the_bounds_of_both_classes() -> None:
    """A plan that beats the base order is told what holds in any order at larger budgets."""
    rows = [row(SMALL, OTHER, 310, 210, method="auto"), row(LARGE, OTHER, 305, 240, method="auto")]
    found = plan_in(agree(GRAPH, rows, 1e-4)[0])
    assert (found.lower_bound_ns, found.base_order_bound_ns) == (240, 310)
    assert claims(found, 240, 310)
    assert not claims(found, 250, 310)


def test_comparisons_carry_the_bounds_of_each_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets are solved one after the other; the table knows all of them."""
    chain = linear_chain(8)
    base = sum(op.time_ns for op in chain.ops)
    schedule = recomputing(chain)
    bounds = iter([base, base + base // 10])

    def solve(_: Graph, budget: int, **__: object) -> Plan:
        return plan_of(
            chain, schedule, budget_bytes=budget, lower_bound_ns=next(bounds), method="milp"
        )

    monkeypatch.setattr(module, "solve", solve)
    small, large = module.compare(chain, ["80%", "90%"], ["milp"]).rows
    assert small.bound == large.bound == pytest.approx(0.1, abs=1e-6)
