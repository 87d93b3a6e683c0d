"""What the heuristic baselines share: exact evaluation, and the choice under a budget."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from ..errors import LowtideError
from ..realise import Tables
from ..schedule import Schedule
from ..search.evaluate import cost
from ..simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..array_types import Ints
    from ..control import Control
    from ..graph import Graph


class NotApplicableError(LowtideError):
    """A baseline that has nothing to work on in this graph; the message says why."""

    exit_code = 2


def both_phases(graph: Graph) -> Tables:
    """The tables of a graph that has a forward and a backward phase.

    Raises
    ------
    NotApplicableError
        If it has one phase only.
    """
    tables = Tables.of(graph)
    if not 0 < tables.boundary < len(graph.ops):
        raise NotApplicableError(
            f"needs a forward and a backward phase; graph {graph.name!r} has one phase only"
        )
    return tables


def everything_fits(
    graph: Graph, budget_bytes: int | None, method: str, most_ops: int
) -> Schedule | None:
    """The base order if it meets the budget, for programs that are to be written down otherwise.

    Raises
    ------
    NotApplicableError
        Without a budget, or on more than `most_ops` ops.
    """
    if budget_bytes is None:
        raise NotApplicableError(f"{method} needs a budget")
    if len(graph.ops) > most_ops:
        raise NotApplicableError(
            f"the program of {method} grows with the square of the ops; graph {graph.name!r} has "
            f"{len(graph.ops)}, more than {most_ops}"
        )
    everything = Schedule.keep_everything(graph)
    return everything if simulate(graph, everything).peak_bytes <= budget_bytes else None


@dataclass(frozen=True, eq=False)
class Candidate:
    """Executions with their exact peak (bytes, resident ones included) and time (ns)."""

    graph: Graph
    computes: Ints
    peak_bytes: int
    time_ns: int

    @cached_property
    def schedule(self) -> Schedule:
        """The executions with their frees."""
        return Schedule.from_computes(self.graph, self.computes.tolist())


def evaluate(graph: Graph, tables: Tables, computes: Ints) -> Candidate:
    """Measure executions with the compiled evaluator."""
    time, peak, _ = cost(tables.arrays, computes, len(computes))
    return Candidate(graph, computes, int(peak) + graph.resident_bytes, int(time))


def base_order(graph: Graph, tables: Tables) -> Candidate:
    """The candidate that recomputes nothing."""
    return evaluate(graph, tables, np.arange(len(graph.ops), dtype=np.int64))


def choose(
    candidates: Iterable[Candidate], budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Cheapest schedule within the budget, else the one with the smallest peak.

    Without a budget the smallest peak wins. Ties go to the other measure, then to the first. Once
    `control` is over no further candidate is asked for.
    """
    within: Candidate | None = None
    smallest: Candidate | None = None
    for it in candidates:
        if budget_bytes is not None and it.peak_bytes <= budget_bytes:
            key = (it.time_ns, it.peak_bytes)
            if within is None or key < (within.time_ns, within.peak_bytes):
                within = it
        key = (it.peak_bytes, it.time_ns)
        if smallest is None or key < (smallest.peak_bytes, smallest.time_ns):
            smallest = it
        if control is not None and control.over:
            break
    best = within or smallest
    return None if best is None else best.schedule


def points(graph: Graph, most: int) -> int:
    """How many candidates to try in one search: fewer on graphs of thousands of ops."""
    return max(24, min(most, 400_000 // max(len(graph.ops), 1)))


def forward_sizes(graph: Graph) -> list[int]:
    """Bytes that each forward op produces."""
    return [
        sum(graph.tensors[t].size_bytes for t in op.outputs) for op in graph.ops[: graph.boundary]
    ]


def crossing_bytes(graph: Graph, tables: Tables) -> list[int]:
    """Per position p of the forward order: bytes made before op p and read at or after it.

    Only reads of the forward phase count: these bytes are the price of a segment border at p.
    """
    change = [0] * (tables.boundary + 1)
    for t, producer in enumerate(tables.producer):
        before = bisect_left(tables.users[t], tables.boundary)
        last = tables.users[t][before - 1] if before else -1
        if 0 <= producer < last:
            change[producer + 1] += graph.tensors[t].size_bytes
            change[last + 1] -= graph.tensors[t].size_bytes
    return list(accumulate(change))[: tables.boundary]


def narrow_positions(graph: Graph, tables: Tables) -> list[int]:
    """Positions at which no fewer bytes cross on either side: articulation points of a chain.

    Of several neighbouring positions with equal bytes all are returned.
    """
    crossing = crossing_bytes(graph, tables)
    count = len(crossing)
    down = [True] * count  # crossing does not fall strictly below on the way to the left
    up = [True] * count
    for p in range(2, count):
        down[p] = crossing[p] < crossing[p - 1] or (crossing[p] == crossing[p - 1] and down[p - 1])
    for p in range(count - 2, -1, -1):
        up[p] = crossing[p] < crossing[p + 1] or (crossing[p] == crossing[p + 1] and up[p + 1])
    return [p for p in range(1, count) if down[p] and up[p]]
