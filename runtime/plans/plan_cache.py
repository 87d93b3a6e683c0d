"""Plans kept on disk: the same step under the same budget and settings is solved once.

One file a plan, in the folder `plans` beside the measurements. Its name is a digest of everything
that the plan depends on, so nothing in it can be out of date; what is read is checked as if it had
just been solved.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from ...solver.cache import cache_dir, writing
from ...solver.check import check
from ...solver.compiled import NOTE
from ...solver.errors import CheckError, InputError
from ...solver.files import read_plan, write_plan
from ...solver.plan import Stop
from ...solver.solve import solve
from ...solver.version import versions

if TYPE_CHECKING:
    from pathlib import Path

    from ...solver.graph import Graph
    from ...solver.plan import Plan
    from ...solver.progress import Event, Progress

_log = logging.getLogger(__name__)

FORMAT = 1  # of the digest: raise it when the solver gets better at the same version
MAX_FILES = 1000


@dataclass(frozen=True)
class Solving:
    """Settings of the solver: seconds, seed, threads, method; each is part of a plan's key."""

    time_limit: float
    seed: int
    threads: int
    method: str = "auto"


def solve_cached(
    graph: Graph,
    budget_bytes: int,
    settings: Solving,
    *,
    start: Plan | None = None,
    lower_bound_ns: int = 0,
    enough: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Plan, bool]:
    """A plan from the cache, or from the solver, which then goes into the cache.

    Parameters
    ----------
    graph, budget_bytes, start, lower_bound_ns
        As `solve` takes them.
    settings
        How to solve.
    enough
        Whether `start`, if it fits and nothing is in the cache, is taken without a search: where
        it was the best that was found for a larger budget.
    folder
        Where plans are; default: `plans` in `cache_dir()`.
    progress
        Hears of the solve; default: a line in the log tells of the compilation of the search.

    Returns
    -------
    tuple of Plan and bool
        The plan, and whether it is from the cache. Interrupted solves are not kept; one line in
        the log tells of them, as nobody would notice later that the plan is not what it could be.
    """
    folder = folder or cache_dir() / "plans"
    path = folder / f"{plan_key(graph, budget_bytes, settings)}.plan.json.gz"
    plan = _read(path, graph, budget_bytes)
    if plan is not None:
        return plan, True
    if enough and start is not None and start.peak_bytes <= budget_bytes:
        plan = msgspec.structs.replace(start, budget_bytes=budget_bytes)
        _write(path, plan)
        return plan, False
    plan = solve(
        graph, budget_bytes, start=start, lower_bound_ns=lower_bound_ns,
        progress=progress or _First(), **asdict(settings),
    )  # fmt: skip
    if plan.stopped_by is Stop.INTERRUPTED:
        _log.warning("lowtide: the solve was interrupted, and its best plan is used: %s", plan)
    else:
        _write(path, plan)
    return plan, False


class _First:
    """Tells of the compilation on a new machine, which would pass in silence; of nothing else."""

    def update(self, event: Event) -> None:
        """Log the note of the compilation."""
        if event.note == NOTE:
            _log.warning("lowtide: %s", event.note)


def plan_key(graph: Graph, budget_bytes: int, settings: Solving) -> str:
    """Digest of all that a plan depends on: structure, costs, budget, settings and versions."""
    digest = hashlib.sha256()
    arrays = graph.arrays
    costs = (arrays.time, arrays.workspace, arrays.rerun_workspace, arrays.size)
    about = {
        "format": FORMAT,
        "structure": graph.structure_hash,
        "extra resident": graph.extra_resident_bytes,
        "units": [graph.size_unit, graph.time_unit],
        "times": graph.meta.get("times", ""),
        "budget": budget_bytes,
        "settings": asdict(settings),
        "versions": versions("highspy", "numba", "numpy"),
    }
    digest.update(msgspec.json.encode(about, order="deterministic"))
    for cost in costs:
        digest.update(cost.astype("<i8").tobytes())
    return digest.hexdigest()[:40]


def adapted(plan: Plan, before: Graph, graph: Graph) -> Plan | None:
    """A plan as a start for another size of the same step; None if the ops are others."""
    if [_shape(op) for op in before.ops] != [_shape(op) for op in graph.ops]:
        return None
    return msgspec.structs.replace(plan, graph_hash=graph.structure_hash)


def _shape(op: msgspec.Struct) -> tuple[object, ...]:
    return tuple(
        getattr(op, name)
        for name in ("kind", "inputs", "outputs", "recompute", "phase", "overwrites", "restores")
    )


def _read(path: Path, graph: Graph, budget_bytes: int) -> Plan | None:
    if not path.exists():
        return None
    try:
        plan = read_plan(path)
        # Steps may have been timed as a whole since: that changes what is said, not what is done.
        plan = msgspec.structs.replace(plan, calibration=graph.calibration)
        if plan.budget_bytes != budget_bytes:
            raise InputError(f"its budget is {plan.budget_bytes} B")
        check(graph, plan)
    except (InputError, CheckError) as error:
        _log.warning("cached plan %s cannot be used (%s): solving again", path, error)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the files used last stay
    return plan


def _write(path: Path, plan: Plan) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_plan(plan, path)
        files = [(file.stat().st_mtime, file) for file in path.parent.glob("*.plan.json.gz")]
        for _, file in sorted(files)[: max(0, len(files) - MAX_FILES)]:
            file.unlink(missing_ok=True)
