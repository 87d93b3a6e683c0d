"""`solve`: a graph and a budget in, a checked plan out, by any method."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from .arguments import checked_arguments
from .assemble import Origin, assemble
from .auto import auto
from .baselines import BASELINES, PUBLISHED
from .blocks.plan import plan_blocks
from .compiled import compile_parts
from .control import Control
from .errors import InfeasibleError, InputError, NoPlanError
from .incumbent import Incumbent, keeps_order
from .job import Job
from .milp.any_order import any_order_bound
from .milp.backends import backend as backend_named
from .options import EVERYTHING, Techniques
from .plan import Plan, Stop
from .progress import Silent, teller
from .refine import Refinement
from .refusals import infeasible, none_in_time, pebbles_in_time, smallest_in_time
from .schedule import Schedule
from .search.anneal import Search
from .simulate import simulate
from .smallest import baseline_starts, limiting_op, single_op_bound
from .units import doubt, format_bytes, parse_budget
from .whole_program import whole_program

if TYPE_CHECKING:
    import threading

    from .graph import Graph
    from .progress import Progress
    from .search.anneal import Found

HEURISTICS = {**BASELINES, **PUBLISHED}
METHODS: tuple[str, ...] = ("auto", "milp", *HEURISTICS)
MOST_THREADS = 256  # more would take longer to start than most solves
ANY_ORDER_SECONDS = 10.0  # for a bound on plans that the usual one does not speak of
BLOCKS_FROM = 300  # ops: composing blocks takes seconds at any size, which smaller graphs need not


@checked_arguments
def solve(
    graph: Graph,
    budget: str | int,
    *,
    method: str = "auto",
    time_limit: float = 60.0,
    gap: float = 1e-4,
    threads: int | None = None,
    seed: int = 0,
    backend: str = "highs",
    order: Literal["any", "base"] = "any",
    moves: int | None = None,
    progress: Progress | None = None,
    start: Plan | None = None,
    lower_bound_ns: int = 0,
    refinement: Refinement | None = None,
    techniques: Techniques = EVERYTHING,
    interrupt: threading.Event | None = None,
) -> Plan:
    """The fastest schedule of `graph` within `budget`.

    Parameters
    ----------
    graph
        The training step.
    budget
        `6GiB`, bytes, a percentage such as `60%`, or `max`; see `parse_budget`.
    method
        One of `METHODS`: `auto` (adaptive stage refinement), `milp` (the whole staged program), or
        a baseline.
    time_limit
        Seconds; the best plan found is returned when they pass.
    gap
        Stop when (time - lower bound) / time of the whole step is at most this.
    threads
        Threads that work at the same time: with two or more, a search over execution sequences
        runs beside the integer programs. None: two, or one on a machine with one core.
    seed, backend
        Seed of every search, and the solver of integer programs.
    order
        `base`: ops run for the first time in base order, the class that integer programs and their
        bounds speak of. `any`: method `auto` looks for better orders, too.
    moves
        Moves of the sequence search in method `auto`. The plan then depends on the seed and the
        threads, and on the time limit only if that ends the search. None: as many as time allows.
    progress
        Told of every new incumbent and bound.
    start
        A plan to start from, for example of a smaller budget.
    lower_bound_ns
        A lower bound on the time that is known already, for example from a larger budget.
    refinement
        Where the refinement of a larger budget ended: method `auto` begins there, and writes into
        it where it ended itself.
    techniques
        Parts of method `auto` that can be left out, for studies.
    interrupt
        Ends the search once it is set, as Ctrl-C does, which sets it; for solves in other threads
        than the main one, and for several that one Ctrl-C shall end.

    Returns
    -------
    Plan
        Checked by `check`. `plan.stopped_by` says whether time or Ctrl-C ended the search.

    Raises
    ------
    InputError
        Unknown method or backend, or an unreadable budget.
    InfeasibleError
        No schedule meets the budget (`proven`), or a baseline finds none.
    NoPlanError
        Time passed before any schedule within the budget was found.
    KeyboardInterrupt
        Ctrl-C was pressed before any was found.
    """
    if method not in METHODS:
        raise InputError(f"no method {method!r}: choose one of {', '.join(METHODS)}")
    if threads is None:
        threads = min(2, os.cpu_count() or 1)
    if not time_limit > 0 or not 0 <= gap < 1 or threads < 1:
        raise InputError("time limit must be above 0, gap in [0, 1), threads at least 1")
    if threads > MOST_THREADS:
        raise InputError(f"threads must be at most {MOST_THREADS}, not {threads}")
    if order not in ("any", "base"):
        raise InputError(f"no order {order!r}: choose any or base")
    if moves is not None and moves < 1:
        raise InputError(f"moves must be at least 1, not {moves}")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed must be in [0, 2**31), not {seed}")
    if not graph.ops:
        raise InputError(f"graph {graph.name!r} has no ops: nothing to plan")
    everything = simulate(graph, Schedule.keep_everything(graph))
    budget_bytes = parse_budget(
        budget, resident_bytes=graph.resident_bytes, peak_bytes=everything.peak_bytes
    )
    in_any = method == "auto" and order == "any"
    floor, op = single_op_bound(graph, any_order=in_any)
    needs = f"{graph.ops[op].name} alone needs {format_bytes(floor)} ({floor} B)"
    if method not in HEURISTICS and floor > budget_bytes and progress is not None:
        # Known at once, while compiling and looking for a budget that can be met takes a while.
        teller(progress)(f"no schedule fits {format_bytes(budget_bytes)}: {needs}")
    large = len(graph.ops) >= BLOCKS_FROM
    compile_parts(
        None if progress is None else teller(progress), searches=method in ("auto", "milp"),
        sequences=method == "auto", blocks=method == "auto" and large,
    )  # fmt: skip
    control = Control(time_limit, interrupt=interrupt, repeatable=moves is not None)
    room = budget_bytes - graph.resident_bytes
    incumbent = Incumbent(
        room, everything.time_ns, control, progress or Silent(), calibration=graph.calibration
    )

    def plan(computes: tuple[int, ...], bound: int) -> Plan:
        stop = Stop.DONE
        if control.over and (bound < 0 or incumbent.gap > gap):
            stop = Stop.INTERRUPTED if control.interrupt.is_set() else Stop.TIME_LIMIT
        any_order = 0
        if incumbent.best is not None and incumbent.best.time < bound:  # in another order
            any_order = any_order_bound(
                graph, budget_bytes, backend_named(backend), control.part(most=ANY_ORDER_SECONDS)
            )
        origin = Origin(
            method, seed, threads, control.elapsed, stop, bound, gap, backend, any_order
        )  # fmt: skip
        return assemble(graph, budget_bytes, computes, origin)

    with control.catching_interrupts():
        if method in HEURISTICS:
            return plan(_baseline(graph, method, budget_bytes, control), -1)
        incumbent.raise_bound(everything.time_ns, "base time")
        incumbent.raise_bound(lower_bound_ns, "given bound")
        if everything.peak_bytes <= budget_bytes:
            return plan(tuple(range(len(graph.ops))), everything.time_ns)
        job = Job(
            graph, budget_bytes, incumbent, Search(graph, seed), backend_named(backend), gap,
            threads, seed, in_any, moves, techniques,
        )  # fmt: skip
        if floor > budget_bytes:
            raise infeasible(
                job, smallest_in_time(job, floor, proven=True), f"; {needs}", proven=True
            )
        starts = _starts(job, start)
        if incumbent.best is None:
            least = pebbles_in_time(job)
            if least > budget_bytes:
                reason = f": in any order at least {format_bytes(least)} ({least} B) are needed"
                raise infeasible(
                    job, smallest_in_time(job, floor, proven=True), reason, proven=True
                )
        if method == "auto":
            possible = auto(job, starts, Refinement() if refinement is None else refinement)
        else:
            possible = whole_program(job)
        if incumbent.best is None:
            if possible and control.interrupt.is_set():
                raise KeyboardInterrupt
            if not possible or not control.over:
                found = smallest_in_time(job, floor)
                # Outside the class, ops running again in another order, there may be one.
                proven = not possible and not in_any and found.peak > incumbent.room
                if not proven and incumbent.offer(found, "smallest peak"):
                    return plan(found.computes, incumbent.bound_ns)
                if not proven and control.interrupt.is_set():
                    raise KeyboardInterrupt  # it may be possible: nobody looked to the end
                reason = " that the search can find" if possible else ""
                if not possible and in_any:  # that says nothing of other orders
                    reason = " in the base order, and none was found in another"
                raise infeasible(job, found, reason, proven=proven)
            raise none_in_time(graph, incumbent, budget_bytes, time_limit)
        return plan(incumbent.best.computes, incumbent.bound_ns)


def _starts(job: Job, start: Plan | None) -> list[Found]:
    """The base order first, then what is given and what heuristics find."""
    graph, search, incumbent = job.graph, job.search, job.incumbent
    starts = [search.measure(range(len(graph.ops)))]
    if start is not None:
        if start.graph_hash != graph.structure_hash:
            raise InputError(f"the plan to start from is for another graph ({start.graph_name})")
        given = search.measure(start.schedule.computes())
        if job.any_order or keeps_order(given.computes):
            starts.append(given)
            incumbent.offer(given, "given plan")
    for name, found in baseline_starts(graph, search, job.budget_bytes, incumbent.control):
        incumbent.offer(found, name)
        starts.append(found)
    if job.techniques.blocks and len(graph.ops) >= BLOCKS_FROM:
        composed = plan_blocks(graph, incumbent.room, incumbent.control, seed=job.seed)
        if composed is not None:
            incumbent.offer(composed, "repeated blocks")
            starts.append(composed)
    return starts


def _baseline(graph: Graph, method: str, budget_bytes: int, control: Control) -> tuple[int, ...]:
    schedule = HEURISTICS[method](graph, budget_bytes, control)
    if schedule is None and control.interrupt.is_set():
        raise KeyboardInterrupt
    if schedule is None and control.over:
        raise NoPlanError(f"{method} found no schedule of {graph.name} in the time it had")
    if schedule is None:
        raise InfeasibleError(f"{method} finds no schedule of {graph.name}")
    peak = simulate(graph, schedule).peak_bytes
    if peak > budget_bytes and control.interrupt.is_set():
        raise KeyboardInterrupt
    if peak > budget_bytes and control.over:
        raise NoPlanError(
            f"{method} found no schedule within {format_bytes(budget_bytes)} ({budget_bytes} B) in "
            f"the time it had; the smallest peak seen is {format_bytes(peak)} ({peak} B)",
            smallest_bytes=peak,
        )
    if peak > budget_bytes:
        raise InfeasibleError(
            f"{method} cannot meet {format_bytes(budget_bytes)} ({budget_bytes} B): the smallest "
            f"peak it reaches is {format_bytes(peak)} ({peak} B); try method auto"
            f"{doubt(budget_bytes, peak)}",
            smallest_bytes=peak,
            limiting_op=limiting_op(graph, schedule.computes()),
        )
    return schedule.computes()
