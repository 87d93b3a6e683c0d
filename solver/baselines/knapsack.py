"""PyTorch's activation memory budget: a knapsack over what is saved for the backward phase.

`torch._functorch.config.activation_memory_budget` (partitioners.py, `choose_saved_values_set`,
since PyTorch 2.4) takes a share b of the bytes that would be saved and solves

    max sum of runtime(t) over saved t,  with  sum of bytes(t) <= b * (bytes of all)

over the values that may be recomputed, by dynamic programming over rounded bytes (`dp_knapsack`)
or by runtime per byte (`greedy_knapsack`). Every value that is not saved is recomputed from what
is, one copy of it for the whole backward phase: chains of recomputed values stay alive, which is
why the measured peak does not fall with b.

Here b runs over a grid, each choice is run exactly, and the cheapest within the budget is returned.
Deviations: the candidates are what the backward phase reads when nothing is recomputed, without
the min-cut before; each value is recomputed at its first need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..realise import saved_array
from .base import base_order, both_phases, choose, evaluate
from .greedy import saved_anyway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..array_types import Bools, Floats, Ints
    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule
    from .base import Candidate

SHARES = 40
SLOTS = 2000


def knapsack_dp(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best knapsack by dynamic programming within the budget, else the smallest peak.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase.
    """
    return choose(_candidates(graph, by_table), budget_bytes, control)


def knapsack_greedy(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best greedy knapsack within the budget, else the smallest peak.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase.
    """
    return choose(_candidates(graph, by_ratio), budget_bytes, control)


def _candidates(graph: Graph, fill: Callable[[Floats, Ints, float], Bools]) -> Iterator[Candidate]:
    tables = both_phases(graph)
    yield base_order(graph, tables)
    saved = saved_anyway(tables)
    items = np.flatnonzero(saved)
    arrays = graph.arrays
    runtime = arrays.time[arrays.producer[items]].astype(np.float64)
    size = arrays.size[items]
    for share in np.linspace(1.0, 0.0, SHARES):
        chosen = np.zeros(len(saved), dtype=np.bool_)
        chosen[items[fill(runtime, size, float(share))]] = True
        yield evaluate(graph, tables, saved_array(tables, chosen))


def by_ratio(runtime: Floats, size: Ints, share: float) -> Bools:
    """Values in descending runtime per byte while they fit: what is chosen."""
    room = share * size.sum()
    chosen = np.zeros(len(size), dtype=np.bool_)
    held = 0
    for i in np.argsort(-runtime / np.maximum(size, 1), kind="stable"):
        if held + size[i] <= room:
            held += size[i]
            chosen[i] = True
    return chosen


def by_table(runtime: Floats, size: Ints, share: float) -> Bools:
    """Values of the largest total runtime that fit, bytes rounded to 1 / `SLOTS` of all."""
    total = max(1, int(size.sum()))
    weight = np.rint(size / total * SLOTS).astype(np.int64)
    return _table(runtime, weight, int(share * SLOTS))


@njit(cache=True, nogil=True)
def _table(runtime: Floats, weight: Ints, room: int) -> Bools:
    count = len(weight)
    best = np.zeros((count + 1, room + 1))
    for i in range(count):
        for m in range(room + 1):
            best[i + 1, m] = best[i, m]
            if weight[i] <= m:
                taken = best[i, m - weight[i]] + runtime[i]
                if taken >= best[i + 1, m]:
                    best[i + 1, m] = taken
    chosen = np.zeros(count, dtype=np.bool_)
    m = room
    for i in range(count - 1, -1, -1):
        if weight[i] <= m and best[i + 1, m] == best[i, m - weight[i]] + runtime[i]:
            chosen[i] = True
            m -= weight[i]
    return chosen
