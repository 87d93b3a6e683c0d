"""Moves between execution sequences, each one composed of added and removed runs.

Drop a tensor over a gap and recompute it, with what it needs, just before its next read; take a
recomputation back, with what it alone needed; move a run; move a stretch of runs. A move says
whether it changed anything; whether it was good is for the caller to see from the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from .state import (
    COUNT,
    MULTI,
    Line,
    add_run,
    fits,
    last_use,
    next_use,
    remove_run,
    run_before,
)

if TYPE_CHECKING:
    from ..array_types import Floats, Ints
    from .evaluate import Arrays

REACH = 24  # slots to look back for an empty one
DEEP = 40  # recomputations of one move at most


class Extra(NamedTuple):
    """What moves need beside the line.

    Attributes
    ----------
    use_ptr, use_op
        Ops that read each tensor (CSR).
    recompute
        Per op: 1 if it may run more than once.
    chance
        Cumulative weights of tensors by size, for random picks.
    live, live_len
        Tensors that were live at the peak not long ago.
    stack
        Room for the ops of one move and the slots they have to precede.
    """

    use_ptr: Ints
    use_op: Ints
    recompute: Ints
    chance: Floats
    live: Ints
    live_len: Ints
    stack: Ints


@njit(cache=True, nogil=True)
def empty_before(line: Line, slot: int, above: int) -> int:
    """The last empty slot before `slot`, after `above` and not far away; -1 if there is none."""
    for s in range(slot - 1, max(above, slot - REACH), -1):
        if line.op_at[s] < 0:
            return s
    return -1


@njit(cache=True, nogil=True)
def live_end(g: Arrays, line: Line, tensor: int, slot: int) -> int:
    """Last slot of the instance of `tensor` that is newest at `slot`; -1 if there is none."""
    p = g.producer[tensor]
    place = run_before(line, p, slot + 1)
    if place == 0:
        return -1
    again = line.runs[p, place] if place < line.run_len[p] else len(line.op_at)
    return last_use(line, tensor, line.runs[p, place - 1], again)


@njit(cache=True, nogil=True)
def list_live(g: Arrays, line: Line, extra: Extra, where: int) -> None:
    """Note which tensors are live across `where` and could be dropped there."""
    count = 0
    for t in range(len(g.size)):
        p = g.producer[t]
        if p < 0 or g.output[t] == 1 or g.size[t] == 0 or extra.recompute[p] == 0:
            continue
        if live_end(g, line, t, where) > where:
            extra.live[count] = t
            count += 1
    extra.live_len[0] = count


@njit(cache=True, nogil=True)
def drop(g: Arrays, line: Line, extra: Extra, tensor: int, where: int, lazy: float) -> bool:
    """Let `tensor` go before `where` and make it again just before it is read next.

    Inputs of recomputations that are not live there are recomputed too or, with the probability
    `lazy`, kept that long.
    """
    if live_end(g, line, tensor, where) <= where:
        return False
    wanted = next_use(line, tensor, where)
    stack = extra.stack
    stack[0], stack[1] = g.producer[tensor], wanted
    top = 1
    done = 0
    while top > 0:
        top -= 1
        op, limit = stack[2 * top], stack[2 * top + 1]
        place = run_before(line, op, limit)
        if place > 0 and line.runs[op, place - 1] > where:
            continue  # made on the way already
        slot = empty_before(line, limit, where)
        if slot < 0 or done >= DEEP or not fits(g, line, op) or extra.recompute[op] == 0:
            if done == 0:
                return False
            continue
        for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
            t = g.in_idx[i]
            p = g.producer[t]
            if g.output[t] == 1 or extra.recompute[p] == 0 or live_end(g, line, t, slot) >= slot:
                continue
            if np.random.random() < lazy:  # noqa: NPY002
                continue
            if 2 * top + 3 < len(stack):
                stack[2 * top], stack[2 * top + 1] = p, slot
                top += 1
        add_run(g, line, op, slot)
        done += 1
    return done > 0


@njit(cache=True, nogil=True)
def removable(g: Arrays, line: Line, extra: Extra, op: int, place: int) -> bool:
    """Whether the run number `place` of `op` can go: a later one must come before all reads."""
    if line.run_len[op] < 2:
        return False
    if place > 0:
        return True
    following = line.runs[op, 1]
    for i in range(g.out_ptr[op], g.out_ptr[op + 1]):
        t = g.out_idx[i]
        for j in range(extra.use_ptr[t], extra.use_ptr[t + 1]):
            if line.runs[extra.use_op[j], 0] < following:
                return False
    return True


@njit(cache=True, nogil=True)
def is_dead(g: Arrays, line: Line, op: int, slot: int) -> bool:
    """Whether nothing reads what the run of `op` at `slot` makes."""
    place = run_before(line, op, slot)
    again = line.runs[op, place + 1] if place + 1 < line.run_len[op] else len(line.op_at)
    for i in range(g.out_ptr[op], g.out_ptr[op + 1]):
        if last_use(line, g.out_idx[i], slot, again) > slot:
            return False
    return True


@njit(cache=True, nogil=True)
def take_back(g: Arrays, line: Line, extra: Extra, op: int, place: int) -> bool:
    """Remove a recomputation and, in turn, those that only it read."""
    if not removable(g, line, extra, op, place):
        return False
    stack = extra.stack
    stack[0] = line.runs[op, place]
    top = 1
    while top > 0:
        top -= 1
        slot = stack[top]
        again = line.op_at[slot]
        if again < 0:
            continue
        remove_run(g, line, slot)
        for i in range(g.in_ptr[again], g.in_ptr[again + 1]):
            t = g.in_idx[i]
            p = g.producer[t]
            if g.output[t] == 1:
                continue
            before = run_before(line, p, slot)
            if before > 1 and top < len(stack):
                made = line.runs[p, before - 1]
                if is_dead(g, line, p, made):
                    stack[top] = made
                    top += 1
    return True


@njit(cache=True, nogil=True)
def window(g: Arrays, line: Line, extra: Extra, op: int, place: int) -> tuple[int, int]:
    """Slots strictly between which the run number `place` of `op` may stand."""
    low = -1
    for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
        low = max(low, line.runs[g.producer[g.in_idx[i]], 0])
    high = len(line.op_at) - 1
    if place == 0:
        if line.run_len[op] > 1:  # a later run may take its place
            high = min(high, line.runs[op, 1])
        for i in range(g.out_ptr[op], g.out_ptr[op + 1]):
            t = g.out_idx[i]
            for j in range(extra.use_ptr[t], extra.use_ptr[t + 1]):
                high = min(high, line.runs[extra.use_op[j], 0])
    else:
        low = max(low, line.runs[op, 0])
    return low, high


@njit(cache=True, nogil=True)
def shift(g: Arrays, line: Line, extra: Extra, op: int, place: int, near: bool) -> bool:
    """Move one run elsewhere in its window: to its ends, nearby, or anywhere."""
    old = line.runs[op, place]
    low, high = window(g, line, extra, op, place)
    if high - low < 3:
        return False
    kind = np.random.random()  # noqa: NPY002
    if kind < 0.2 and place == 0:
        target = high
    elif kind < 0.3 and place == 0:
        target = low + 1 + int(np.random.random() * min(REACH, high - low - 1))  # noqa: NPY002
    elif near or kind < 0.65:
        width = max(16, int(len(line.op_at) / max(1, line.number[COUNT]) * 12))
        target = old + int((np.random.random() - 0.5) * 2 * width)  # noqa: NPY002
    else:
        target = low + 1 + int(np.random.random() * (high - low - 1))  # noqa: NPY002
    target = min(high, max(low + 1, target))
    slot = empty_before(line, target + 1 if target < high else target, low)
    if slot < 0 or slot == old or slot <= low or slot >= high or slot + 1 >= len(line.op_at):
        return False
    remove_run(g, line, old)
    add_run(g, line, op, slot)
    return True


@njit(cache=True, nogil=True)
def shift_stretch(g: Arrays, line: Line, extra: Extra, slot: int, length: int) -> bool:
    """Move up to `length` consecutive runs behind the run that follows them, order kept.

    Equivalent to moving that run before them, which is done if its window allows.
    """
    slots = len(line.op_at)
    s = slot
    seen = 0
    while s < slots - 1 and (line.op_at[s] < 0 or seen < length):
        if line.op_at[s] >= 0:
            seen += 1
        s += 1
    if s >= slots - 1 or line.op_at[s] < 0:
        return False
    op = line.op_at[s]
    place = run_before(line, op, s)
    low, _ = window(g, line, extra, op, place)
    target = empty_before(line, max(slot, low + 1) + 1, low)
    if target < 0 or target <= low:
        return False
    remove_run(g, line, s)
    add_run(g, line, op, target)
    return True


@njit(cache=True, nogil=True)
def random_recomputed(line: Line) -> int:
    """An op that runs more than once; -1 if none does."""
    count = line.number[MULTI]
    if count == 0:
        return -1
    return int(line.multi[np.random.randint(count)])  # noqa: NPY002
