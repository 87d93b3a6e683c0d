"""Binomial checkpointing of a uniform chain: Griewank & Walther 2000 (Algorithm 799, `revolve`).

To reverse l steps with s snapshots, the state at the start among them, takes at least

    t(l, s) = r l - C(s + r, r - 1),   r the smallest number with C(s + r, s) >= l

forward steps beside the ones that are taped (their Theorem 6.1 and eq. 2). The first m steps of an
optimal schedule are advanced over, the state is stored, and both parts are reversed in the same
way: t(l, s) = min over m of m + t(l - m, s - 1) + t(m, s).

The method knows neither times nor sizes: all steps are alike. It is run on the linearized graph,
with every number of snapshots; the cheapest result within the budget is returned.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .base import base_order, both_phases, choose, points
from .chain import linearized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..array_types import Ints
    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule
    from .base import Candidate
    from .chain import Runs

STAGES = 1024
SNAPSHOTS = 64  # numbers of snapshots tried on one chain


def revolve(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best binomial checkpointing within the budget, else the smallest peak.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase.
    """
    return choose(_candidates(graph), budget_bytes, control)


def forward_steps(steps: int, snapshots: int) -> int:
    """t(l, s): forward steps that reversing `steps` steps takes beside the taped ones."""
    if steps <= 1:
        return 0
    repeats = 1
    while math.comb(snapshots + repeats, snapshots) < steps:
        repeats += 1
    return repeats * steps - math.comb(snapshots + repeats, repeats - 1)


def reruns(steps: int, snapshots: int) -> Runs:
    """For each step: where the run that precedes its backward starts; None for the last step."""
    table: dict[int, Ints] = {}

    def costs(s: int) -> Ints:
        if s not in table:
            table[s] = np.array([forward_steps(n, s) for n in range(steps + 1)], dtype=np.int64)
        return table[s]

    runs: list[int | None] = [None] * steps
    # Parts to reverse, the next one on top: start, end, snapshots, start of the run into it.
    todo = [(0, steps, snapshots, -1)]
    while todo:
        low, high, s, start = todo.pop()
        if high - low == 1:
            runs[low] = None if start < 0 else start
            continue
        length = high - low
        if s == 1:
            todo.extend((step, step + 1, 1, low) for step in range(low, high - 1))
            todo.append((high - 1, high, 1, start))
            continue
        m = np.arange(1, length)
        cut = 1 + int(np.argmin(m + costs(s - 1)[length - m] + costs(s)[m]))
        todo.append((low, low + cut, s, low))
        todo.append((low + cut, high, s - 1, start))
    return tuple(runs)


def _candidates(graph: Graph) -> Iterator[Candidate]:
    tables = both_phases(graph)
    chains = linearized(graph, tables, STAGES)
    yield base_order(graph, tables)
    for chain in chains:
        count = min(SNAPSHOTS, points(graph, SNAPSHOTS))
        grid = np.geomspace(1, chain.length, min(count, chain.length))
        for snapshots in sorted({round(x) for x in grid}):
            yield chain.run(reruns(chain.length, snapshots))
