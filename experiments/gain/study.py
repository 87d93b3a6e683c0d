"""Rows of the study: every method at the same budget of the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import lowtide
from lowtide.solver.assemble import Origin, assemble
from lowtide.solver.control import Control
from lowtide.solver.incumbent import Incumbent
from lowtide.solver.progress import Silent
from lowtide.solver.search.anneal import Search
from lowtide.solver.search.beside import Beside
from lowtide.solver.smallest import baseline_starts
from lowtide.solver.units import parse_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lowtide.solver import comparison

BUDGETS = ("80%", "60%", "40%", "25%")
HEURISTICS = ("sqrt_n", "per_block", "greedy")
SEARCH, AUTO = "search", "auto"
METHODS = (*HEURISTICS, SEARCH, AUTO)


@dataclass(frozen=True)
class Row:
    """One method at one budget.

    Attributes
    ----------
    model, ops
        The step.
    budget, budget_bytes
        The budget: resident bytes plus a percentage of what the rest takes without recomputation.
    method
        A heuristic; `search`: the sequence search from the best of them, for as long as `auto` may
        take; `auto`.
    overhead
        Extra time as a fraction of the step; None where the method misses the budget.
    bound, gap
        Lower bound on the overhead, and (time - bound) / time.
    seconds, status
        Time taken, and what is known of the plan, or why there is none.
    """

    model: str
    ops: int
    budget: str
    budget_bytes: int
    method: str
    overhead: float | None
    bound: float | None
    gap: float | None
    seconds: float
    status: str


def study(
    model: str,
    graph: lowtide.Graph,
    budgets: Sequence[str],
    *,
    time_limit: float,
    report: Callable[[str], None],
) -> Iterator[Row]:
    """All methods at all budgets of one step."""
    found = lowtide.compare(
        graph,
        budgets,
        [*HEURISTICS, AUTO],
        time_limit=time_limit,
        on_row=lambda row, _: report(f"{model}, {row.budget}, {row.method}: {_words(row)}"),
    )
    if found.interrupted:
        raise KeyboardInterrupt
    for budget in budgets:
        rows = [row for row in found.rows if row.budget == budget]
        for row in rows:
            yield Row(
                model, len(graph.ops), budget, row.budget_bytes, row.method, row.overhead,
                row.bound, row.gap, row.seconds, row.status,
            )  # fmt: skip
        yield search_only(model, graph, budget, time_limit)


def search_only(model: str, graph: lowtide.Graph, budget: str, time_limit: float) -> Row:
    """The sequence search alone, from the best heuristic, until the time is over."""
    base = lowtide.simulate(graph, lowtide.Schedule.keep_everything(graph))
    amount = parse_budget(budget, resident_bytes=graph.resident_bytes, peak_bytes=base.peak_bytes)
    control = Control(time_limit)
    incumbent = Incumbent(amount - graph.resident_bytes, base.time_ns, control, Silent())
    search = Search(graph, 0)
    starts = [search.measure(range(len(graph.ops)))]
    starts += [found for _, found in baseline_starts(graph, search, amount, control)]
    for found in starts:
        incumbent.offer(found, "heuristic")
    first = incumbent.best or min(starts, key=lambda found: found.peak)
    Beside(graph, incumbent, 0, [first, starts[0]]).run()
    best = incumbent.best
    facts = (model, len(graph.ops), budget, amount, SEARCH)
    if best is None:
        return Row(*facts, None, None, None, control.elapsed, "no plan in time")
    plan = assemble(graph, amount, best.computes, Origin(SEARCH, 0, 1, control.elapsed))
    return Row(*facts, plan.overhead, None, None, plan.solve_seconds, plan.status.value)


def _words(row: comparison.Row) -> str:
    return row.status if row.overhead is None else f"{row.overhead:.2%} in {row.seconds:.0f} s"
