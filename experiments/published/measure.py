"""One row: solve, and set the result beside what was published."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from lowtide.solver.check import check
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.incumbent import keeps_order
from lowtide.solver.plan import Plan, Stop
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.smallest import single_op_bound
from lowtide.solver.solve import solve

from . import papers
from .cases import Case, Figure  # noqa: TC001  (msgspec reads the types at run time)

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph

Verdict = Literal[
    "below", "equal", "above", "only ours", "only theirs", "neither", "not comparable"
]
BATCH_STEPS = 5  # solves to find the largest batch


class Settings(msgspec.Struct, frozen=True):
    """What a row depends on beside its case; rows of other settings are measured afresh."""

    time_limit: float
    gap: float = 1e-4
    seed: int = 0
    threads: int = 2


class Row(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes
    ----------
    case, settings
        What was asked for.
    graph_hash, ops
        The graph.
    budget_bytes, peak_bytes
        Resident bytes included; None where there is none.
    value
        Overhead as a fraction, or a batch; None if no plan was found.
    bound
        Bound on `value` that no schedule of the plan's class passes.
    gap
        (time - bound) / time of the whole step.
    reordered
        The plan runs ops in another order than the stored one, of which alone `bound` speaks.
    seconds, cpu_seconds
        Of the solve, and processor time of this process.
    status
        `optimal`, `feasible`, `reordered` (no bound that holds for it), or why there is no plan.
    """

    case: Case
    settings: Settings
    graph_hash: str
    ops: int
    budget_bytes: int | None
    peak_bytes: int | None
    value: float | None
    bound: float | None
    gap: float | None
    seconds: float
    cpu_seconds: float
    status: str
    reordered: bool = False

    @property
    def best(self) -> Figure | None:
        """The best published result that keeps within the budget."""
        found = [f for f in self.case.figures if f.value is not None and f.met]
        most = max if self.case.kind == "batch" else min
        return most(found, key=lambda f: f.value or 0.0, default=None)

    @property
    def verdict(self) -> Verdict:
        """How ours compares with the best published one.

        A batch at which a single op would not fit was counted in another way than here.
        """
        best = self.best
        if best is None or best.value is None:
            return "neither" if self.value is None else "only ours"
        if self.case.kind == "batch" and self.bound is not None and best.value > self.bound:
            return "not comparable"
        if self.value is None:
            return "only theirs"
        better = best.value - self.value
        if self.case.kind == "batch":
            better = -better
        if abs(better) <= best.tolerance:
            return "equal"
        return "below" if better > 0 else "above"


@dataclass(frozen=True)
class _Outcome:
    value: float | None
    bound: float | None
    gap: float | None
    budget_bytes: int | None
    peak_bytes: int | None
    status: str
    reordered: bool = False


def measure(case: Case, graph: Graph, settings: Settings) -> Row:
    """Measure one case.

    Raises
    ------
    KeyboardInterrupt
        If Ctrl-C was pressed: a row that was cut short is none.
    """
    begun, cpu = time.monotonic(), time.process_time()
    find = {"overhead": _overhead, "batch": _batch}[case.kind]
    found = find(case, graph, settings)
    return Row(
        case,
        settings,
        graph.structure_hash,
        len(graph.ops),
        found.budget_bytes,
        found.peak_bytes,
        found.value,
        found.bound,
        found.gap,
        round(time.monotonic() - begun, 2),
        round(time.process_time() - cpu, 2),
        found.status,
        found.reordered,
    )


def hopeless(case: Case, graph: Graph) -> bool:
    """A budget that nobody reported on, below what a single op needs."""
    return case.implied and case.budget_bytes(graph, 0) < single_op_bound(graph)[0]


def _plan(
    graph: Graph, budget: int, settings: Settings, share: float = 1.0, start: Plan | None = None
) -> Plan:
    plan = solve(
        graph,
        budget,
        time_limit=settings.time_limit * share,
        gap=settings.gap,
        seed=settings.seed,
        threads=settings.threads,
        start=start,
    )
    if plan.stopped_by is Stop.INTERRUPTED:
        raise KeyboardInterrupt
    check(graph, plan)
    return plan


def _base_peak(graph: Graph) -> int:
    return simulate(graph, Schedule.keep_everything(graph)).peak_bytes


def _overhead(case: Case, graph: Graph, settings: Settings) -> _Outcome:
    budget = case.budget_bytes(graph, _base_peak(graph))
    try:
        plan = _plan(graph, budget, settings)
    except InfeasibleError as error:
        proven = "infeasible" if error.proven else "no plan"
        return _Outcome(None, None, None, budget, error.smallest_bytes, proven)
    except NoPlanError as error:
        return _Outcome(None, None, None, budget, error.smallest_bytes, "no plan in time")
    bound = None
    if plan.lower_bound_ns >= 0 and plan.base_time_ns > 0:
        bound = max(0, plan.lower_bound_ns - plan.base_time_ns) / plan.base_time_ns
    reordered = bool(bound) and not keeps_order(plan.schedule.computes())
    status = "reordered" if reordered else plan.status.value
    return _Outcome(plan.overhead, bound, plan.gap, budget, plan.peak_bytes, status, reordered)


def _batch(case: Case, graph: Graph, settings: Settings) -> _Outcome:
    """Bisect between what was published and what single ops allow.

    Everything but the resident bytes grows with the batch, so a batch is a budget here.
    """
    resident, size = graph.resident_bytes, int(case.amount)
    forward = sum(op.time_ns for op in graph.ops if op.phase == "forward")
    total = sum(op.time_ns for op in graph.ops)
    room = papers.MAX_BATCH_BYTES - resident
    floor, _ = single_op_bound(graph)

    def attempt(batch: int, start: Plan | None) -> Plan | None:
        budget = resident + room * size // batch
        try:
            plan = _plan(graph, budget, settings, 1 / BATCH_STEPS, start)
        except (InfeasibleError, NoPlanError):
            return None
        return plan if plan.time_ns <= total + forward else None

    high = room * size // (floor - resident)  # nothing larger fits
    low, best = 0, None
    guess = min(high, int(case.figures[0].value or size))
    top = high + 1
    for _ in range(BATCH_STEPS):
        plan = attempt(guess, best)
        if plan is None:
            top = guess
        else:
            low, best = guess, plan
        if top - low <= 1:
            break
        guess = (low + top) // 2 if low else max(1, guess * 9 // 10)
    if best is None:
        return _Outcome(None, high, None, None, None, "no plan")
    return _Outcome(low, high, best.gap, best.budget_bytes, best.peak_bytes, "found")
