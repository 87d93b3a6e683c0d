"""Every method at every budget, side by side: what each reaches, and why not where it does not."""

from __future__ import annotations

import difflib
import functools
import threading
from typing import TYPE_CHECKING

from .baselines import BASELINES, PUBLISHED, NotApplicableError
from .bounds import carry
from .comparison import INFEASIBLE, NO_PLAN, NOT_APPLICABLE
from .comparison import Comparison as Comparison
from .comparison import Row as Row
from .errors import InfeasibleError, InputError, NoPlanError
from .parallel import rows_of
from .plan import Stop
from .schedule import Schedule
from .simulate import simulate
from .solve import METHODS, solve
from .store import Store
from .sweep import METHOD as SWEPT
from .sweep import agree, sweep
from .units import expand_budgets, parse_budget

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from .graph import Graph


GROUPS: dict[str, tuple[str, ...]] = {
    "all": METHODS,
    "quick": ("auto", *BASELINES),
    "published": tuple(PUBLISHED),
}


def compare(
    graph: Graph,
    budgets: Sequence[str | int | float],
    methods: Sequence[str] | str = "quick",
    *,
    time_limit: float = 60.0,
    gap: float = 1e-4,
    threads: int | None = None,
    seed: int = 0,
    backend: str = "highs",
    jobs: int = 1,
    cluster: str = "local",
    address: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    on_row: Callable[[Row, int], None] | None = None,
) -> Comparison:
    """Run every method at every budget, each with the same limits.

    Parameters
    ----------
    graph
        The step.
    budgets
        Amounts such as `6GiB`, bytes, or percentages as `parse_budget` takes them, and ranges such
        as `20%..90%:8`. Several budgets of `auto` are solved as one `sweep`.
    methods
        Names from `METHODS`, or of `GROUPS`: `quick` (`auto` and the heuristics it starts from),
        `published` (the systems of the literature) or `all`.
    time_limit
        Seconds for each pair of budget and method.
    gap, threads, seed, backend
        As `solve` takes them.
    jobs
        Pairs that run at the same time, each in a process of its own with `threads` threads. With
        more than one, Ctrl-C ends the comparison with the rows that are done.
    cluster, address
        Where they run: `local`, or `dask` or `ray` with the address of the scheduler (None: a new
        one on this machine).
    resume
        A folder: finished rows are kept there, and those that are there already are not run again.
    on_row
        Called with each row and how many there will be, as rows are done.

    Raises
    ------
    InputError
        If a budget, the name of a method or a cluster cannot be understood or used.
    """
    names = resolve_methods(methods)
    base = simulate(graph, Schedule.keep_everything(graph))
    texts = [piece for budget in budgets for piece in expand_budgets(str(budget))]
    asked = [
        (b, parse_budget(b, resident_bytes=graph.resident_bytes, peak_bytes=base.peak_bytes))
        for b in texts
    ]
    if not asked:
        raise InputError("no budget to compare at: give at least one, such as 50%")
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    pairs = [(text, amount, name) for text, amount in asked for name in names]

    one = functools.partial(
        run_method, graph, time_limit=time_limit, gap=gap, threads=threads, seed=seed,
        backend=backend,
    )  # fmt: skip
    alone = jobs == 1 and cluster == "local"
    interrupt = threading.Event()  # set by Ctrl-C, also where the row is a refusal
    if alone:  # in other processes Ctrl-C ends all of it
        one = functools.partial(one, interrupt=interrupt)
    rows: dict[tuple[str, int, str], Row] = {}
    interrupted = False

    def done(row: Row, _: int = 0) -> None:
        if on_row is not None:
            on_row(row, len(pairs))

    store = None
    if resume is not None:
        store = Store(
            resume, graph, time_limit=time_limit, gap=gap, threads=threads, seed=seed,
            backend=backend,
        )  # fmt: skip
        for text, amount, name in pairs:
            kept = store.get(name, text, amount)
            if kept is not None:
                rows[text, amount, name] = kept
                done(kept)
    try:
        missing = [text for text, amount in asked if (text, amount, SWEPT) not in rows]
        if SWEPT in names and len(missing) > 1 and alone:
            swept = sweep(
                graph, missing, time_limit=time_limit, gap=gap, threads=threads, seed=seed,
                backend=backend, on_row=done, store=store,
            )  # fmt: skip
            rows |= {(row.budget, row.budget_bytes, SWEPT): row for row in swept.rows}
            interrupted = swept.interrupted
        left = [] if interrupted else [pair for pair in pairs if pair not in rows]
        found = rows_of(one, left, jobs=jobs, cluster=cluster, address=address)
        for pair, row in zip(left, found, strict=True):
            rows[pair] = row
            if store is not None and not interrupt.is_set():
                store.put(row)
            done(row)
            stopped = row.plan is not None and row.plan.stopped_by is Stop.INTERRUPTED
            interrupted = stopped or interrupt.is_set()
            if interrupted:
                break
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    if not alone or store is not None:
        together = agree(graph, [row for row in rows.values() if row.method == SWEPT], gap)
        rows |= {(row.budget, row.budget_bytes, SWEPT): row for row in together}
    told = [row for row in rows.values() if row.method != SWEPT]  # a sweep has told them itself
    told = carry(graph, told, gap, backend)
    rows |= {(row.budget, row.budget_bytes, row.method): row for row in told}
    return Comparison(
        graph_name=graph.name,
        graph_hash=graph.structure_hash,
        size_unit=graph.size_unit,
        time_unit=graph.time_unit,
        resident_bytes=graph.resident_bytes,
        base_peak_bytes=base.peak_bytes,
        base_time_ns=base.time_ns,
        rows=tuple(rows[pair] for pair in pairs if pair in rows),
        interrupted=interrupted,
    )


def resolve_methods(methods: Sequence[str] | str) -> tuple[str, ...]:
    """Names of methods, each once; a name of `GROUPS` stands for all of them.

    Raises
    ------
    InputError
        If a name is unknown; the message has the closest known one.
    """
    given = methods.split(",") if isinstance(methods, str) else list(methods)
    names: list[str] = []
    for written in given:
        name = written.strip().replace("-", "_")
        if name in GROUPS:
            names.extend(GROUPS[name])
        elif name in METHODS:
            names.append(name)
        else:
            known = (*METHODS, *GROUPS)
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
            raise InputError(f"no method {written.strip()!r}: {hint}")
    return tuple(dict.fromkeys(names))


def run_method(
    graph: Graph,
    budget: str,
    budget_bytes: int,
    method: str,
    *,
    time_limit: float,
    gap: float,
    threads: int | None,
    seed: int,
    backend: str,
    interrupt: threading.Event | None = None,
) -> Row:
    """One row; a budget that cannot be met is a row too, not an error."""
    try:
        plan = solve(
            graph,
            budget_bytes,
            method=method,
            time_limit=time_limit,
            gap=gap,
            threads=threads,
            seed=seed,
            backend=backend,
            interrupt=interrupt,
        )
    except InfeasibleError as error:
        return Row(
            method,
            budget,
            budget_bytes,
            INFEASIBLE,
            None,
            0.0,
            str(error),
            error.smallest_bytes,
            error.limiting_op,
            error.proven,
        )
    except NoPlanError as error:
        return Row(method, budget, budget_bytes, NO_PLAN, None, time_limit, str(error))
    except NotApplicableError as error:
        return Row(method, budget, budget_bytes, NOT_APPLICABLE, None, 0.0, str(error))
    ended = "" if plan.stopped_by is Stop.DONE else plan.stopped_by.value
    return Row(method, budget, budget_bytes, plan.status.value, plan, plan.solve_seconds, ended)
