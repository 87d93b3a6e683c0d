"""The compiled evaluator: what a rule for keeping tensors costs, in O(ops + recomputations).

A rule says for every gap between two consecutive uses of a tensor by base ops whether it stays in
memory. Walking the base order, an op's missing inputs are recomputed, with their missing ancestors,
just before it. The frees then follow as in `Schedule.from_computes`. These functions repeat the
accounting of `simulate` for speed only; every schedule found here is simulated before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from ..array_types import Bools, Bools2, Bytes, Ints
    from ..graph import Graph

DROP, KEEP, KEEP_REMADE, KEEP_BOTH = 0, 1, 2, 3


class Arrays(NamedTuple):
    """A graph as the compiled functions read it; see `GraphArrays` for the CSR parts.

    Attributes
    ----------
    gap_ptr
        Per tensor: its gaps. Gap j of a tensor lies before its use number j by a base op; the last
        one, after all uses, matters where later recomputations read the tensor.
    forced
        1 where a tensor stays once made: outputs, and results of ops that may run only once.
    overwrites
        Per op: the input whose bytes its output takes where this is the last read, or -1.
    restores, spare
        Per op: the input that its first run does not read, or -1. Per tensor: 1 if it is made only
        where such a later run follows.
    """

    time: Ints
    workspace: Ints
    rerun_workspace: Ints
    size: Ints
    producer: Ints
    output: Ints
    in_ptr: Ints
    in_idx: Ints
    out_ptr: Ints
    out_idx: Ints
    gap_ptr: Ints
    forced: Ints
    overwrites: Ints
    restores: Ints
    spare: Ints


def arrays_of(graph: Graph) -> Arrays:
    """The arrays of `graph`."""
    a = graph.arrays
    gap_ptr = a.use_ptr + np.arange(len(a.size) + 1, dtype=np.int64)
    forced = a.output.copy()
    made = a.producer >= 0
    forced[made] |= 1 - a.recompute[a.producer[made]]
    return Arrays(
        a.time, a.workspace, a.rerun_workspace, a.size, a.producer, a.output,
        a.in_ptr, a.in_idx, a.out_ptr, a.out_idx, gap_ptr, forced, a.overwrites, a.restores,
        a.spare,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _missing(
    g: Arrays, base: int, available: Bools, mark: Bools, stack: Ints, wanted: int, found: Ints
) -> int:
    """Write into `found`, in base order, the ops that must run again before the first `base`.

    The first `wanted` entries of `stack` are ops that shall run in any case.
    """
    count = 0
    top = wanted
    for i in range(wanted):
        mark[stack[i]] = True
    for i in range(g.in_ptr[base], g.in_ptr[base + 1]):
        t = g.in_idx[i]
        p = g.producer[t]
        if not available[t] and not mark[p] and t != g.restores[base]:
            mark[p] = True
            stack[top] = p
            top += 1
    while top > 0:
        top -= 1
        op = stack[top]
        found[count] = op
        count += 1
        for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
            t = g.in_idx[i]
            p = g.producer[t]
            if not available[t] and not mark[p]:
                mark[p] = True
                stack[top] = p
                top += 1
    if count > 1:
        found[:count] = np.sort(found[:count])
    for i in range(count):
        mark[found[i]] = False
    return count


@njit(cache=True, nogil=True)
def expand(g: Arrays, rule: Bytes, computes: Ints) -> int:
    """Write into `computes` the executions that `rule` leads to.

    Parameters
    ----------
    rule
        Per gap: DROP; KEEP it through the gap; KEEP_REMADE: keep it if it is recomputed inside
        the gap; KEEP_BOTH.
    computes
        Room for the result.

    Returns
    -------
    int
        How many were written; -1 if there was not enough room.
    """
    count = len(g.time)
    available = np.zeros(len(g.size), dtype=np.bool_)
    used = np.zeros(len(g.size), dtype=np.int64)  # base uses so far
    mark = np.zeros(count, dtype=np.bool_)
    stack = np.empty(count, dtype=np.int64)
    found = np.empty(count, dtype=np.int64)
    written = 0
    for base in range(count):
        again = _missing(g, base, available, mark, stack, 0, found)
        if written + again + count - base > len(computes):
            return -1
        computes[written : written + again] = found[:again]
        written += again
        computes[written] = base
        written += 1
        # The base op's reads enter their next gap; its results enter their first one.
        for i in range(g.in_ptr[base], g.in_ptr[base + 1]):
            t = g.in_idx[i]
            used[t] += 1
            kind = rule[g.gap_ptr[t] + used[t]]
            if t == g.restores[base] and not available[t]:  # not there, if it was not made again
                there = False
                for j in range(again):
                    there = there or found[j] == g.producer[t]
                if not there:
                    continue
            available[t] = g.forced[t] == 1 or kind == 1 or kind == 3
        for i in range(g.out_ptr[base], g.out_ptr[base + 1]):
            t = g.out_idx[i]
            kind = rule[g.gap_ptr[t]]
            available[t] = g.forced[t] == 1 or kind == 1 or kind == 3
        # What was recomputed on the way, but not read by the base op, is in the middle of a gap.
        for i in range(again):
            op = found[i]
            for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
                t = g.out_idx[j]
                direct = False
                for m in range(g.in_ptr[base], g.in_ptr[base + 1]):
                    if g.in_idx[m] == t:
                        direct = True
                        break
                if not direct and not available[t]:
                    available[t] = rule[g.gap_ptr[t] + used[t]] >= 2
    return written


@njit(cache=True, nogil=True)
def expand_carried(g: Arrays, first: Ints, carried: Bools2, again: Bools2, computes: Ints) -> int:
    """Like `expand`, for a rule per stage.

    Parameters
    ----------
    first
        First base op of each stage, ascending from 0.
    carried
        (stages, tensors): the tensor may be in memory when the stage begins.
    again
        (stages, ops): the op runs again in the stage, at the latest before its last base op, if
        the next stage is to be handed its results.
    """
    count = len(g.time)
    available = np.zeros(len(g.size), dtype=np.bool_)
    mark = np.zeros(count, dtype=np.bool_)
    stack = np.empty(count, dtype=np.int64)
    found = np.empty(count, dtype=np.int64)
    written = 0
    stage = 0
    for base in range(count):
        if stage + 1 < len(first) and first[stage + 1] == base:
            stage += 1
            for t in range(len(g.size)):
                if g.forced[t] == 0 and not carried[stage, t]:
                    available[t] = False
        wanted = 0
        if stage + 1 < len(first) and first[stage + 1] == base + 1:
            for op in range(base):
                if again[stage, op]:
                    for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
                        t = g.out_idx[j]
                        if carried[stage + 1, t] and not available[t]:
                            stack[wanted] = op
                            wanted += 1
                            break
        more = _missing(g, base, available, mark, stack, wanted, found)
        if written + more + count - base > len(computes):
            return -1
        computes[written : written + more] = found[:more]
        written += more
        computes[written] = base
        written += 1
        for i in range(more):
            op = found[i]
            for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
                available[g.out_idx[j]] = True
        for j in range(g.out_ptr[base], g.out_ptr[base + 1]):
            available[g.out_idx[j]] = True
    return written


@njit(cache=True, nogil=True)
def cost(g: Arrays, computes: Ints, length: int) -> tuple[int, int, int]:
    """What a sequence of executions costs.

    Returns
    -------
    tuple
        Time, peak without resident bytes, and the base op before or during which it occurs.
    """
    needed = np.zeros(len(g.size), dtype=np.bool_)
    left = np.zeros(len(g.time), dtype=np.int64)
    kept = 0
    for i in range(length):
        op = computes[i]
        if left[op] == 0:
            for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
                t = g.out_idx[j]
                if g.output[t] == 1:
                    kept += g.size[t]
        left[op] += 1
    time = 0
    peak = 0
    where = len(g.time) - 1
    base = where
    live = 0  # tensors that are not outputs, and that something after this point reads
    for i in range(length - 1, -1, -1):
        op = computes[i]
        left[op] -= 1
        first = left[op] == 0
        if first:
            base = op
        made = 0
        taken = g.overwrites[op]
        if taken >= 0 and not needed[taken]:
            made -= g.size[taken]
        for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
            t = g.out_idx[j]
            if g.spare[t] == 0 or needed[t]:
                made += g.size[t]
            if g.output[t] == 1:
                if first:
                    kept -= g.size[t]
            elif needed[t]:
                needed[t] = False
                live -= g.size[t]
        for j in range(g.in_ptr[op], g.in_ptr[op + 1]):
            t = g.in_idx[j]
            if first and g.restores[op] == t:
                continue
            if g.output[t] == 0 and not needed[t]:
                needed[t] = True
                live += g.size[t]
        during = live + kept + made + (g.workspace[op] if first else g.rerun_workspace[op])
        if during >= peak:
            peak = during
            where = base
        time += g.time[op]
    return time, peak, where
