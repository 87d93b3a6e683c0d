"""The compiled walk along the base order that recomputes what is missing; see `realise`.

Linear in the ops of the graph and the executions of the schedule. A walk that would take longer
than it is allowed to, or does not fit the buffer, stops early and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from .array_types import Bools, Ints
    from .search.evaluate import Arrays

TOO_SLOW, FULL = -1, -2


class Stays(NamedTuple):
    """Which recomputed tensors stay in memory.

    Attributes
    ----------
    hold
        Without leaves: how many base ops ahead the next need of a tensor may lie; -1: any number.
    use_ptr, use_idx
        Per tensor: ops that read it.
    made_in, last_in
        Per tensor: the leaf that makes it and the last leaf that reads it in the forward phase.
        Empty without leaves.
    stored_ptr, stored_idx
        Per leaf: borders that are stored while the backward phase works on it, ascending.
    """

    hold: int
    use_ptr: Ints
    use_idx: Ints
    made_in: Ints
    last_in: Ints
    stored_ptr: Ints
    stored_idx: Ints


@njit(cache=True, nogil=True)
def crosses(stays: Stays, tensor: int, leaf: int) -> bool:
    """Whether `tensor` belongs to leaf `leaf` or crosses a border stored for it."""
    made = stays.made_in[tensor]
    if made >= leaf:
        return True
    low, high = stays.stored_ptr[leaf], stays.stored_ptr[leaf + 1]
    while low < high:  # the first stored border after the leaf that makes it
        middle = (low + high) // 2
        if stays.stored_idx[middle] <= made:
            low = middle + 1
        else:
            high = middle
    if low == stays.stored_ptr[leaf + 1]:
        return False
    return bool(stays.stored_idx[low] <= stays.last_in[tensor])


@njit(cache=True, nogil=True)
def _near(stays: Stays, tensor: int, op: int, count: int) -> bool:
    """Whether the next use of `tensor` after base op `op` lies within the hold."""
    if stays.hold < 0:
        return True
    low, high = stays.use_ptr[tensor], stays.use_ptr[tensor + 1]
    while low < high:
        middle = (low + high) // 2
        if stays.use_idx[middle] <= op:
            low = middle + 1
        else:
            high = middle
    use = stays.use_idx[low] if low < stays.use_ptr[tensor + 1] else count
    return bool(use <= op + stays.hold)


@njit(cache=True, nogil=True)
def sort(values: Ints, start: int, end: int) -> None:
    """Sort `values[start:end]` in place: insertion when short, else by heap.

    NumPy's sort takes seconds to compile and allocates; most calls are for a handful.
    """
    count = end - start
    if count <= 16:
        for i in range(start + 1, end):
            value = values[i]
            place = i
            while place > start and values[place - 1] > value:
                values[place] = values[place - 1]
                place -= 1
            values[place] = value
        return
    for step in range(count // 2 + count - 1):
        if step < count // 2:  # make the heap, then take the largest to the end each time
            root, size = count // 2 - 1 - step, count
        else:
            root, size = 0, count - 1 - (step - count // 2)
            last = start + size
            values[start], values[last] = values[last], values[start]
        value = values[start + root]
        while 2 * root + 1 < size:
            child = 2 * root + 1
            if child + 1 < size and values[start + child + 1] > values[start + child]:
                child += 1
            if values[start + child] <= value:
                break
            values[start + root] = values[start + child]
            root = child
        values[start + root] = value


@njit(cache=True, nogil=True)
def walk(
    g: Arrays, boundary: int, present: Bools, stays: Stays, slowest: int, computes: Ints
) -> int:
    """Write into `computes` the base order with recomputations before each backward op.

    Parameters
    ----------
    present
        Per tensor: the backward phase starts with it in memory; changed in place. With leaves,
        what `stays` keeps for the last one is added.
    slowest
        Nanoseconds above which the walk gives up.
    computes
        Room for the result.

    Returns
    -------
    int
        How many were written; `TOO_SLOW`, or `FULL` if there was not enough room.
    """
    count = len(g.time)
    leaves = len(stays.made_in) > 0
    mark = np.zeros(count, dtype=np.bool_)
    stack = np.empty(count, dtype=np.int64)
    missing = np.empty(len(g.size), dtype=np.int64)
    for t in range(len(g.size) if leaves else 0):
        if not present[t]:
            present[t] = crosses(stays, t, len(stays.stored_ptr) - 2)
    written = boundary
    time = 0
    for op in range(boundary):
        computes[op] = op
        time += g.time[op]
    for base in range(boundary, count):
        absent = 0
        for i in range(g.in_ptr[base], g.in_ptr[base + 1]):
            t = g.in_idx[i]
            if present[t] or t == g.restores[base]:  # that is of no use to a first run
                continue
            place = absent
            absent += 1
            while leaves and place > 0:  # the latest leaf first
                before = missing[place - 1]
                if stays.made_in[before] >= stays.made_in[t]:
                    break
                missing[place] = before
                place -= 1
            missing[place] = t
        done = 0
        while done < absent:
            # With leaves one tensor after the other, else all at once.
            reason = stays.made_in[missing[done]] if leaves else base
            top = 0
            start = written
            while done < absent:
                t = missing[done]
                done += 1
                p = g.producer[t]
                if not present[t] and not mark[p]:
                    mark[p] = True
                    stack[top] = p
                    top += 1
                if leaves:
                    break
            while top > 0:
                top -= 1
                op = stack[top]
                if written >= len(computes):
                    return FULL
                computes[written] = op
                written += 1
                time += g.time[op]
                if time > slowest:
                    return TOO_SLOW
                for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
                    t = g.in_idx[i]
                    p = g.producer[t]
                    if not present[t] and not mark[p]:
                        mark[p] = True
                        stack[top] = p
                        top += 1
            sort(computes, start, written)
            for i in range(start, written):
                op = computes[i]
                mark[op] = False
                for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
                    t = g.out_idx[j]
                    if not present[t]:
                        if leaves:
                            present[t] = crosses(stays, t, reason)
                        else:
                            present[t] = _near(stays, t, base, count)
        if written >= len(computes):
            return FULL
        computes[written] = base
        written += 1
        time += g.time[base]
    return written
