"""Dynamic programming over lower sets: Kusumoto et al. 2019 (arXiv 1905.11722).

A lower set L of the forward graph has no edge into it from outside. A strategy is an increasing
sequence L_1 < .. < L_k = V: forward keeps the boundary of each L_i (what later nodes read of it),
backward recomputes the rest of V_i = L_i - L_{i-1}, from the last to the first. With M bytes, T
time and dL the boundary of L, the step needs, while it works on V_i,

    m_i = M(dL_1 u .. u dL_{i-1}) + 2 M(V_i) + M(d+(L_i) - L_i) + M(d-(d+(L_i)) - L_i)

(what is cached, values and gradients of V_i, gradients around it: their eq. 1), and the overhead is
the sum of T(V_i - dL_i) (eq. 2; nothing of the last part is recomputed here: it is still there).
Exact: over all lower sets, opt[L, t] = the least cached bytes with overhead t (Algorithm 1).
Approximate: only over the sets of ancestors of each node (section 4.3).

The program is solved for several budgets with time rounded to `TICKS` of the forward phase, each
strategy is run exactly (their time-centric one, with the least overhead, and the memory-centric
one, with the most), and the cheapest within the budget is returned. On a captured step the
gradients that follow V_i are counted from the graph: its own backward ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..control import Control
from ..realise import saved_array
from .base import NotApplicableError, base_order, both_phases, choose, evaluate
from .chain import live_in_backward
from .lower_sets import all_lower_sets, ancestor_sets, boundary_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..array_types import Bools, Bools2, Floats, Ints
    from ..graph import Graph
    from ..realise import Tables
    from ..schedule import Schedule
    from .base import Candidate

TICKS = 100
BUDGETS = 16
EXACT_SETS = 3000  # most lower sets of the exact program
MOST_SETS = 700  # of the approximate one
NONE = np.iinfo(np.int64).max // 4


def kusumoto_exact(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best strategy over all lower sets.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase, or more than `EXACT_SETS` lower sets.
    """
    tables = both_phases(graph)
    sets = all_lower_sets(graph, tables, EXACT_SETS, control or Control())
    if sets is None:
        raise NotApplicableError(
            f"the exact program goes over all lower sets; graph {graph.name!r} has more than "
            f"{EXACT_SETS}"
        )
    return choose(_candidates(graph, tables, sets, control), budget_bytes, control)


def kusumoto(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best strategy over the sets of ancestors of each op (their approximate program).

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase.
    """
    tables = both_phases(graph)
    sets = ancestor_sets(graph, tables, MOST_SETS)
    return choose(_candidates(graph, tables, sets, control), budget_bytes, control)


def _candidates(
    graph: Graph, tables: Tables, sets: Bools2, control: Control | None
) -> Iterator[Candidate]:
    yield base_order(graph, tables)
    for cached in strategies(graph, tables, sets, control or Control()):
        yield evaluate(graph, tables, saved_array(tables, cached))


def strategies(graph: Graph, tables: Tables, sets: Bools2, control: Control) -> Iterator[Bools]:
    """What is cached by the best strategy of each budget, as masks over tensors.

    Parameters
    ----------
    sets
        (sets, forward ops): lower sets in ascending order of size, the empty one first and the
        whole forward phase last.
    control
        Once it is over there are no more strategies: a thousand sets of a thousand ops take long.
    """
    arrays = graph.arrays
    boundary = boundary_of(graph, tables, sets)
    time = np.where(arrays.recompute[: tables.boundary] == 1, arrays.time[: tables.boundary], 0)
    tick = max(1.0, float(time.sum()) / TICKS)
    steps = transitions(graph, tables, sets, boundary, time / tick, control)
    if steps is None:
        return
    low, high = 0, int(arrays.size.sum() + steps.peak.max(initial=0)) + 1
    while (
        high - low > max(1, high // 200) and not control.over
    ):  # the least bytes for which there is a strategy
        middle = (low + high) // 2
        if shortest(steps, len(sets), middle) is None:
            low = middle
        else:
            high = middle
    most = max(high + 1, int(arrays.size.sum()))
    rooms = np.geomspace(high, most, BUDGETS).astype(np.int64).tolist()
    seen: set[bytes] = set()
    for room, centric in ((room, way) for room in rooms for way in ("time", "memory")):
        chain = shortest(steps, len(sets), room, longest=centric == "memory")
        if chain is None:
            continue
        cached = np.zeros(len(graph.tensors), dtype=np.bool_)
        for number in chain[:-1]:
            cached |= boundary[number]
        # The last part is not recomputed.
        last = np.zeros(len(graph.ops), dtype=np.bool_)
        last[: tables.boundary] = sets[chain[-1]] & ~sets[chain[-2]]
        made = arrays.producer >= 0
        cached[made] |= last[arrays.producer[made]]
        if cached.tobytes() not in seen:
            seen.add(cached.tobytes())
            yield cached


class Transitions:
    """Steps L -> L' of the program, L a proper subset of L'.

    Attributes
    ----------
    start
        CSR over L; `end[start[L]:start[L + 1]]` are the L'.
    end
        The set after the step.
    ticks
        Overhead of the step, in ticks; cached bytes that the step adds; bytes beside the cached
        ones while backward works on it.
    """

    def __init__(self, start: Ints, end: Ints, ticks: Ints, adds: Ints, peak: Ints) -> None:
        self.start, self.end, self.ticks, self.adds, self.peak = start, end, ticks, adds, peak


def transitions(
    graph: Graph, tables: Tables, sets: Bools2, boundary: Bools2, ticks: Floats,
    control: Control,
) -> Transitions | None:  # fmt: skip
    """All steps between the sets; None if `control` is over before."""
    arrays, forward = graph.arrays, tables.boundary
    made = np.flatnonzero((arrays.producer >= 0) & (arrays.producer < forward))
    size = np.zeros(forward, dtype=np.int64)
    np.add.at(size, arrays.producer[made], arrays.size[made])
    gradient = _gradient_bytes(graph, tables)
    last = len(sets) - 1
    start, end, steps, adds, peak = [0], [], [], [], []
    for number in range(last):
        if control.over:
            return None
        inside = sets[number]
        above = np.flatnonzero((sets[number + 1 :] >= inside).all(axis=1)) + number + 1
        new = sets[above] & ~inside
        kept = boundary[above][:, made] & ~inside[arrays.producer[made]]
        bytes_kept = kept @ arrays.size[made]
        kept_ops = np.zeros_like(new)
        rows, columns = np.nonzero(kept)
        kept_ops[rows, arrays.producer[made][columns]] = True
        spent = (new & ~kept_ops) @ ticks
        spent[above == last] = 0.0
        end.append(above)
        steps.append(np.ceil(spent - 1e-9).astype(np.int64))
        adds.append(bytes_kept)
        peak.append(new @ size + (new * gradient).max(axis=1, initial=0))
        start.append(start[-1] + len(above))
    start.append(start[-1])
    return Transitions(
        np.array(start, dtype=np.int64), np.concatenate(end), np.concatenate(steps),
        np.concatenate(adds).astype(np.int64), np.concatenate(peak).astype(np.int64),
    )  # fmt: skip


def _gradient_bytes(graph: Graph, tables: Tables) -> Ints:
    """Per forward op: bytes of the backward phase that live while its backward ops run."""
    forward, count = tables.boundary, len(graph.ops)
    live = live_in_backward(graph, tables)
    result = np.zeros(forward, dtype=np.int64)
    for op in range(forward, count):
        for t in tables.inputs[op]:
            p = tables.producer[t]
            if p < forward:
                result[p] = max(result[p], live[op])
    return result


def shortest(
    steps: Transitions, count: int, room: int, *, longest: bool = False
) -> list[int] | None:
    """Sets of the strategy with the least (or most) overhead whose every m_i is within `room`."""
    forward = TICKS + len(steps.end)  # ticks are rounded up once a step
    most = min(2 * TICKS, forward)
    best, before = _program(
        steps.start, steps.end, steps.ticks, steps.adds, steps.peak, count, most, room
    )
    reached = np.flatnonzero(best[count - 1] < NONE)
    if not len(reached):
        return None
    t = int(reached[-1 if longest else 0])
    chain = [count - 1]
    while chain[-1] != 0:
        number, t = before[chain[-1], t]
        chain.append(int(number))
    return chain[::-1]


@njit(cache=True, nogil=True)
def _program(
    start: Ints, end: Ints, ticks: Ints, adds: Ints, peak: Ints, count: int, most: int, room: int
) -> tuple[Ints, Ints]:
    """opt[L, t], and the set and the time that it came from."""
    best = np.full((count, most + 1), NONE, dtype=np.int64)
    before = np.zeros((count, most + 1, 2), dtype=np.int64)
    best[0, 0] = 0
    for number in range(count):
        for t in range(most + 1):
            held = best[number, t]
            if held >= NONE:
                continue
            for k in range(start[number], start[number + 1]):
                after = t + ticks[k]
                if after > most or held + peak[k] > room:
                    continue
                if held + adds[k] < best[end[k], after]:
                    best[end[k], after] = held + adds[k]
                    before[end[k], after, 0] = number
                    before[end[k], after, 1] = t
    return best, before
