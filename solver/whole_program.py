"""The method `milp`: the staged program of every op, in one go."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .milp.problem import Effort, Outcome
from .milp.staged import build
from .milp.stages import every_op, free_tensors
from .milp.starts import start_values

if TYPE_CHECKING:
    from .job import Job


def whole_program(job: Job) -> bool:
    """Checkmate's model with every op an exact stage, in one go; False: proven infeasible."""
    graph, incumbent = job.graph, job.incumbent
    free = free_tensors(graph, incumbent.room, 0.0)
    try:
        program = build(graph, job.budget_bytes, every_op(graph), free, control=incumbent.control)
    except TimeoutError:
        return True
    known = incumbent.in_order
    start = None if known is None else start_values(program, known.computes)
    control = incumbent.control
    effort = Effort(control, control.remaining, job.gap / 2, job.threads, job.seed)
    answer = job.backend.solve(program.problem, effort, start=start)
    if answer.outcome == Outcome.INFEASIBLE:
        return incumbent.best is not None
    if math.isfinite(answer.bound):
        incumbent.raise_bound(program.bound_ns(answer.bound), "integer program")
    if answer.values is not None:
        firsts = np.arange(len(graph.ops), dtype=np.int64)
        carried, again = program.carried(answer.values), program.again(answer.values)
        incumbent.offer(job.search.realise_carried(firsts, carried, again), "integer program")
    return True
