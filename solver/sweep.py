"""A whole curve of budgets, every solve knowing what the others found.

A schedule within a budget is one within every larger budget, and a lower bound at a budget holds at
every smaller one. Both are passed on, so time and bound never increase with the budget, peaks never
decrease, and a solve begins with the plan of its neighbour and ends early where the neighbours'
results close its gap.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .assemble import Origin, assemble
from .bounds import claims, proven
from .comparison import INFEASIBLE, NO_PLAN, Comparison, Row
from .control import Control
from .errors import InfeasibleError, InputError, NoPlanError
from .plan import Stop
from .refine import Refinement
from .schedule import Schedule
from .simulate import simulate
from .smallest import smallest_found
from .solve import solve
from .units import expand_budgets, parse_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .graph import Graph
    from .plan import Plan
    from .progress import Progress
    from .search.anneal import Found
    from .store import Store

METHOD = "auto"


def sweep(
    graph: Graph,
    budgets: Sequence[str | int | float] | str | int = 10,
    *,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    threads: int | None = None,
    seed: int = 0,
    backend: str = "highs",
    order: Literal["any", "base"] = "any",
    moves: int | None = None,
    progress: Progress | None = None,
    on_row: Callable[[Row, int], None] | None = None,
    store: Store | None = None,
) -> Comparison:
    """Plans of method `auto` for many budgets of one graph.

    Parameters
    ----------
    graph
        The step.
    budgets
        Budgets as `parse_budget` takes them, in a list or as text such as `20%..90%:8,4GiB`; or how
        many, spread evenly from the smallest budget that is found to the peak without
        recomputation.
    time_limit
        Seconds for each budget at most.
    gap, threads, seed, backend, order, moves, progress
        As `solve` takes them.
    on_row
        Called with each row as its solve ends, and with how many there will be. Later solves can
        still improve it.
    store
        Where finished rows are kept, and taken from instead of being solved again.

    Returns
    -------
    Comparison
        One row for every budget, in the order asked for; `row.plan` is None where there is no plan.

    Raises
    ------
    InputError
        If a budget cannot be understood.
    KeyboardInterrupt
        If Ctrl-C was pressed before any plan was found; later ones end the sweep early.
    """
    base = simulate(graph, Schedule.keep_everything(graph))
    smallest: Found | None = None
    if isinstance(budgets, int):
        smallest = smallest_found(graph, seed, Control(20.0), any_order=order == "any")
        budgets = _even(budgets, smallest.peak + graph.resident_bytes, base.peak_bytes)
    asked = [
        (text, parse_budget(text, resident_bytes=graph.resident_bytes, peak_bytes=base.peak_bytes))
        for text in _texts(budgets)
    ]
    curve = Curve(graph, sorted({amount for _, amount in asked}), gap, backend)
    names = {amount: text for text, amount in reversed(asked)}
    refinement = Refinement()
    interrupt = threading.Event()
    interrupted = False
    try:
        for point in reversed(curve.points):
            plan = None
            if not curve.settled(point):
                kept = None
                if store is not None:
                    kept = store.get(METHOD, names[point.budget_bytes], point.budget_bytes)
                try:
                    plan = again(kept) if kept is not None else solve(
                        graph, point.budget_bytes, method=METHOD, time_limit=time_limit, gap=gap,
                        threads=threads, seed=seed, backend=backend, order=order, moves=moves,
                        progress=progress, start=curve.start(point), lower_bound_ns=point.bound_ns,
                        refinement=refinement, interrupt=interrupt,
                    )  # fmt: skip
                except InfeasibleError as error:
                    curve.miss(point, error, 0.0)
                except NoPlanError as error:
                    curve.miss(point, error, time_limit)
                if plan is not None:
                    curve.take(point, plan)
            if smallest is not None and point is curve.points[0] and point.plan is None:
                origin = Origin(METHOD, seed, threads or 1, point.seconds, point.stopped_by)
                curve.offer(assemble(graph, point.budget_bytes, smallest.computes, origin))
            if on_row is not None:
                row = curve.row(point, names[point.budget_bytes])
                if row is not None:
                    on_row(row, len(curve.points))
            if store is not None and not interrupt.is_set():
                row = curve.row(point, names[point.budget_bytes])
                if row is not None:
                    store.put(row)
            stopped = plan is not None and plan.stopped_by is Stop.INTERRUPTED
            interrupted = stopped or interrupt.is_set()
            if interrupted:
                break
    except KeyboardInterrupt:
        if all(point.plan is None for point in curve.points):
            raise
        interrupted = True
    found = [curve.row(curve.at(amount), text) for text, amount in asked]
    return Comparison(
        graph_name=graph.name,
        graph_hash=graph.structure_hash,
        size_unit=graph.size_unit,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        base_peak_bytes=base.peak_bytes,
        base_time_ns=base.time_ns,
        rows=tuple(row for row in found if row is not None),
        interrupted=interrupted,
    )


def agree(graph: Graph, rows: Sequence[Row], gap: float) -> list[Row]:
    """Rows of independent solves with what each tells of the others, in the same order."""
    curve = Curve(graph, sorted({row.budget_bytes for row in rows}), gap)
    for row in rows:
        if row.plan is not None:
            curve.take(curve.at(row.budget_bytes), row.plan)
    agreed = []
    for row in rows:
        point, plan = curve.at(row.budget_bytes), row.plan
        same = plan is point.plan and (
            plan is None or claims(plan, point.any_order_ns, point.bound_ns)
        )
        point.seconds = row.seconds
        agreed.append(row if same else curve.row(point, row.budget) or row)
    return agreed


def again(row: Row) -> Plan:
    """The plan of a finished row, or the error that it stands for."""
    if row.plan is not None:
        return row.plan
    if row.status == INFEASIBLE:
        raise InfeasibleError(
            row.reason, smallest_bytes=row.smallest_bytes, limiting_op=row.limiting_op,
            proven=row.proven,
        )  # fmt: skip
    raise NoPlanError(row.reason)


@dataclass
class Point:
    """What is known at one budget.

    Attributes
    ----------
    budget_bytes
        The budget.
    plan
        The fastest plan that is known within it, of whatever budget.
    bound_ns, any_order_ns
        No schedule in the base order, and none in any order, is faster; -1 if nothing is known.
    seconds, stopped_by
        Of the solve at this budget.
    missed
        The error where a solve at this budget found no plan, or proved that none exists at a larger
        one.
    """

    budget_bytes: int
    plan: Plan | None = None
    bound_ns: int = -1
    any_order_ns: int = -1
    seconds: float = 0.0
    stopped_by: Stop = Stop.DONE
    missed: InfeasibleError | NoPlanError | None = None


class Curve:
    """Points in the order of their budgets; what is found at one is told to all it holds for."""

    def __init__(self, graph: Graph, budgets: Sequence[int], gap: float, backend: str = "") -> None:
        self.graph = graph
        self.gap = gap
        self.backend = backend
        self.points = [Point(amount) for amount in budgets]

    def at(self, budget_bytes: int) -> Point:
        """The point of a budget."""
        return next(point for point in self.points if point.budget_bytes == budget_bytes)

    def settled(self, point: Point) -> bool:
        """Whether another solve could tell nothing that matters."""
        if point.plan is None:
            return point.missed is not None
        excess = point.plan.time_ns - point.bound_ns
        return point.bound_ns >= 0 and excess <= self.gap * point.plan.time_ns

    def start(self, point: Point) -> Plan | None:
        """The plan to begin with: the best within this budget, else that of the next larger one."""
        place = self.points.index(point)
        return next((near.plan for near in self.points[place:] if near.plan is not None), None)

    def take(self, point: Point, plan: Plan) -> None:
        """Note what a solve at `point` found, and tell the others."""
        point.seconds += plan.solve_seconds
        point.stopped_by = plan.stopped_by
        any_order_ns, bound_ns = proven(plan)
        self.raise_bound(point.budget_bytes, bound_ns, any_order_ns)
        self.offer(plan)

    def offer(self, plan: Plan) -> None:
        """A plan, for every budget from its peak on."""
        for point in self.points:
            # Of equally fast ones the smallest: so no peak is above that of a larger budget.
            if point.budget_bytes >= plan.peak_bytes and (
                point.plan is None
                or (plan.time_ns, plan.peak_bytes) < (point.plan.time_ns, point.plan.peak_bytes)
            ):
                point.plan = plan

    def raise_bound(self, budget_bytes: int, bound_ns: int, any_order_ns: int = -1) -> None:
        """Lower bounds in the base order and in any, for every budget up to their own."""
        for point in self.points:
            if point.budget_bytes <= budget_bytes:
                point.bound_ns = max(point.bound_ns, bound_ns)
                point.any_order_ns = max(point.any_order_ns, any_order_ns)

    def miss(self, point: Point, error: InfeasibleError | NoPlanError, seconds: float) -> None:
        """No plan at `point`; if none exists, nor is there one at smaller budgets."""
        point.seconds += seconds
        point.missed = error
        for other in self.points:
            if (
                isinstance(error, InfeasibleError)
                and error.proven
                and other.budget_bytes <= point.budget_bytes
                and other.missed is None
            ):
                other.missed = error

    def row(self, point: Point, text: str) -> Row | None:
        """What is known at `point` now; None if no solve has looked at it yet."""
        amount, found, error = point.budget_bytes, point.plan, point.missed
        if found is not None:
            stop = Stop.DONE if self.settled(point) else point.stopped_by
            origin = Origin(
                METHOD, found.seed, found.threads, point.seconds, stop, point.bound_ns, self.gap,
                self.backend, point.any_order_ns,
            )  # fmt: skip
            plan = assemble(self.graph, amount, found.schedule.computes(), origin)
            ended = "" if stop is Stop.DONE else stop.value
            return Row(METHOD, text, amount, plan.status.value, plan, plan.solve_seconds, ended)
        if isinstance(error, InfeasibleError):
            return Row(
                METHOD, text, amount, INFEASIBLE, None, point.seconds, str(error),
                error.smallest_bytes, error.limiting_op, error.proven,
            )  # fmt: skip
        if error is not None:
            return Row(METHOD, text, amount, NO_PLAN, None, point.seconds, str(error))
        return None


def _even(count: int, low: int, high: int) -> list[str]:
    """So many budgets, spread evenly."""
    if count < 1:
        raise InputError(f"a sweep needs at least one budget, not {count}")
    low, steps = min(low, high), max(1, count - 1)
    return [str(low + (high - low) * k // steps) for k in range(count)]


def _texts(budgets: Sequence[str | int | float] | str) -> list[str]:
    """Every budget as text."""
    if isinstance(budgets, str):
        texts = expand_budgets(budgets)
    else:
        texts = [piece for budget in budgets for piece in expand_budgets(str(budget))]
    if not texts:
        raise InputError("no budget to sweep over: give at least one, such as 20%..90%:8")
    return texts
