"""Optimal persistent checkpointing of a heterogeneous chain: Beaumont et al. 2019 (`rotor`).

With m bytes left beside the stored input of stage s, reversing stages s .. t costs (their
Theorem 1, arXiv 1911.13214)

    C(s, t, m) = min( min over s < j <= t of
                          F(s) + .. + F(j - 1) + C(j, t, m - a(j)) + C(s, j - 1, m),
                      F(s) + C(s + 1, t, m - abar(s)) + B(s) )
    C(s, s, m) = F(s) + B(s)  if abar(s) + oB(s) <= m, else infinity

(store only what enters j, or all that backward needs of s). Bytes are counted in `SLOTS` equal
slots, rounded up, as in the original.

The graph is linearized into at most `STAGES` stages, whose times and bytes are read off it; the
program is solved for all budgets at once, each solution is run exactly on the graph, and the
cheapest within the budget is returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from .base import base_order, both_phases, choose
from .chain import ChainCosts, linearized

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from ..array_types import Floats, Ints
    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule
    from .base import Candidate
    from .chain import Runs

    Floats3 = npt.NDArray[np.float64]
    Cuts3 = npt.NDArray[np.int32]

STAGES = 80
SLOTS = 300
TRIED = 60  # budgets whose solution is run
IMPOSSIBLE = 1e300
ALL = 0  # cut of a part whose first stage is kept whole


def rotor(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best solution of the chain program within the budget, else the smallest peak.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase.
    """
    return choose(_candidates(graph), budget_bytes, control)


def solve_chain(costs: ChainCosts, slot_bytes: float, slots: int) -> tuple[Floats3, Cuts3]:
    """C(s, t, m) for all parts and all m in 0 .. `slots`, and the first cut of each."""

    def in_slots(values: Ints) -> Ints:
        return np.ceil(values / slot_bytes).astype(np.int64)

    return _fill(
        costs.forward_ns.astype(np.float64),
        costs.backward_ns.astype(np.float64),
        in_slots(costs.input_bytes),
        in_slots(costs.all_bytes),
        in_slots(costs.backward_bytes),
        slots,
    )


@njit(cache=True, nogil=True)
def _fill(
    forward: Floats, backward: Floats, enters: Ints, whole: Ints,
    other: Ints, slots: int,
) -> tuple[Floats3, Cuts3]:  # fmt: skip
    length = len(forward)
    best = np.full((length, length, slots + 1), IMPOSSIBLE)
    cut = np.full((length, length, slots + 1), -1, dtype=np.int32)
    until = np.zeros(length + 1)
    until[1:] = np.cumsum(forward)
    for s in range(length):
        for m in range(whole[s] + other[s], slots + 1):
            best[s, s, m] = forward[s] + backward[s]
            cut[s, s, m] = ALL
    for span in range(1, length):
        for s in range(length - span):
            t = s + span
            for m in range(slots + 1):
                value, chosen = IMPOSSIBLE, -1
                if m >= whole[s] + other[s]:
                    inner = best[s + 1, t, m - whole[s]]
                    if inner < IMPOSSIBLE:
                        value, chosen = forward[s] + inner + backward[s], ALL
                for j in range(s + 1, t + 1):
                    if m < enters[j]:
                        continue
                    right, left = best[j, t, m - enters[j]], best[s, j - 1, m]
                    total = until[j] - until[s] + right + left
                    if right < IMPOSSIBLE and left < IMPOSSIBLE and total < value:
                        value, chosen = total, j
                best[s, t, m] = value
                cut[s, t, m] = chosen
    return best, cut


def reruns(cut: Cuts3, enters: Ints, whole: Ints, slots: int) -> Runs | None:
    """The runs of the solution for `slots` slots; None if there is none."""
    length = cut.shape[0]
    if cut[0, length - 1, slots] < 0:
        return None
    runs: list[int | None] = [None] * length
    # Parts, the next one on top: first and last stage, slots, start of the run into it (-1: first).
    todo = [(0, length - 1, slots, -1)]
    while todo:
        s, t, m, start = todo.pop()
        if s == t:
            runs[s] = None if start < 0 else start
            continue
        j = int(cut[s, t, m])
        if j == ALL:
            todo.append((s + 1, t, m - int(whole[s]), start))
        else:
            todo.append((s, j - 1, m, s))
            todo.append((j, t, m - int(enters[j]), start))
    return tuple(runs)


def _candidates(graph: Graph) -> Iterator[Candidate]:
    tables = both_phases(graph)
    chains = linearized(graph, tables, STAGES)
    yield base_order(graph, tables)
    for chain in chains:
        costs = ChainCosts.of(chain)
        total = int(costs.all_bytes.sum() + costs.backward_bytes.max(initial=0)) + 1
        slot = total / (SLOTS - 2 * min(chain.length, SLOTS // 3))  # room for rounding up
        _, cut = solve_chain(costs, slot, SLOTS)
        enters = np.ceil(costs.input_bytes / slot).astype(np.int64)
        whole = np.ceil(costs.all_bytes / slot).astype(np.int64)
        seen: set[Runs] = set()
        for slots in np.unique(np.linspace(1, SLOTS, TRIED).astype(np.int64)).tolist():
            runs = reruns(cut, enters, whole, slots)
            if runs is not None and runs not in seen:
                seen.add(runs)
                yield chain.run(runs)
