"""Execution sequences under incremental evaluation: adding or removing one run costs O(log n).

Executions stand on a line of slots, most of them empty, so that one more fits almost anywhere. Any
sequence in which the first run of an op follows the first runs of the ops that it reads from is a
valid schedule: an instance of a tensor lives from the run that makes it to the last read before it
is made again, so a read always finds one. Live bytes along the slots are kept as differences in a
tree of sums and largest prefix sums; an interval of a tensor is two point updates, and the peak
stands at the root. The idea of slots with gaps and of range updates is that of FastSA (Imanishi et
al. 2023, section 3).

These functions repeat the accounting of `simulate` for speed only; every schedule found here is
simulated before it is used. One thing they count too high: what only reruns read is taken as read
by first runs, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from ..array_types import Ints
    from .evaluate import Arrays

RUNS = 32  # executions of one op that there is room for at least
SPREAD = 8  # slots per op at least
STRETCHES = 64  # parts of the line whose peaks are told apart; a power of two, no more than slots

TIME, COUNT, MULTI, JOURNAL = 0, 1, 2, 3


class Line(NamedTuple):
    """A sequence on its line of slots.

    Attributes
    ----------
    op_at
        Per slot: the op that runs there, -1 for none. The last slot stays empty.
    runs, run_len
        Per op: its slots, ascending, and how many there are.
    use_ptr, uses, use_len
        Per tensor: slots that read it, ascending; room for `use_ptr[t+1] - use_ptr[t]`. Tensors
        that stay to the end are left out.
    total, best
        Nodes of a binary tree over the slots, leaves last: sum of the differences of live bytes,
        and the largest sum of a non-empty prefix.
    multi, multi_at
        Ops that run more than once, in any order, and where each of them stands in that list.
    journal
        Rows of sign, op, slot: what was done since the last commit.
    number
        Time of the sequence, executions, length of `multi`, length of the journal.
    """

    op_at: Ints
    runs: Ints
    run_len: Ints
    use_ptr: Ints
    uses: Ints
    use_len: Ints
    total: Ints
    best: Ints
    multi: Ints
    multi_at: Ints
    journal: Ints
    number: Ints


def line_for(g: Arrays, computes: Ints) -> Line:
    """Room for sequences of a graph like `computes`, and for twice as many runs and reads."""
    count, tensors = len(g.time), len(g.size)
    runs = np.bincount(computes, minlength=count)
    slots = 64
    while slots < max(SPREAD * count, 4 * len(computes) + 4):
        slots *= 2
    users = np.bincount(g.in_idx, minlength=tensors)
    reads = np.bincount(g.in_idx, np.repeat(runs, np.diff(g.in_ptr)), minlength=tensors)
    room = np.where(users > 0, np.maximum(6 * users, 2 * reads.astype(np.int64)) + 16, 0)
    use_ptr = np.zeros(tensors + 1, dtype=np.int64)
    np.cumsum(room, out=use_ptr[1:])
    zeros = np.zeros
    return Line(
        op_at=np.full(slots, -1, dtype=np.int64),
        runs=zeros((count, max(RUNS, 2 * int(runs.max(initial=0)))), dtype=np.int64),
        run_len=zeros(count, dtype=np.int64),
        use_ptr=use_ptr,
        uses=zeros(int(use_ptr[-1]), dtype=np.int64),
        use_len=zeros(tensors, dtype=np.int64),
        total=zeros(2 * slots, dtype=np.int64),
        best=zeros(2 * slots, dtype=np.int64),
        multi=zeros(count, dtype=np.int64),
        multi_at=np.full(count, -1, dtype=np.int64),
        journal=zeros((4096, 3), dtype=np.int64),
        number=zeros(4, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def bump(total: Ints, best: Ints, slot: int, change: int) -> None:
    """Add `change` to the live bytes of `slot` and of all later ones."""
    if change == 0:
        return
    node = slot + (len(total) >> 1)
    total[node] += change
    best[node] += change
    node >>= 1
    while node > 0:
        left = 2 * node
        total[node] = total[left] + total[left + 1]
        best[node] = max(best[left], total[left] + best[left + 1])
        node >>= 1


@njit(cache=True, nogil=True)
def excess(line: Line, room: int) -> int:
    """Bytes above `room`, summed over the peaks of `STRETCHES` equal stretches of the line.

    The highest peak alone would not reward lowering one of several.
    """
    total, best = line.total, line.best
    if best[1] <= room:
        return 0
    over = 0
    before = 0
    for node in range(STRETCHES, 2 * STRETCHES):
        over += max(0, before + best[node] - room)
        before += total[node]
    return over


@njit(cache=True, nogil=True)
def peak_slot(line: Line) -> int:
    """The first slot with the largest number of live bytes."""
    node = 1
    slots = len(line.op_at)
    while node < slots:
        left = 2 * node
        node = left if line.best[left] >= line.total[left] + line.best[left + 1] else left + 1
    return node - slots


@njit(cache=True, nogil=True)
def run_before(line: Line, op: int, slot: int) -> int:
    """How many runs of `op` come before `slot`."""
    return _run_before(line.runs, line.run_len, op, slot)


@njit(cache=True, nogil=True)
def _run_before(runs: Ints, run_len: Ints, op: int, slot: int) -> int:
    place = int(run_len[op])
    while place > 0 and runs[op, place - 1] >= slot:
        place -= 1
    return place


@njit(cache=True, nogil=True)
def last_use(line: Line, tensor: int, made: int, before: int) -> int:
    """Slot of the last read of `tensor` between `made` and `before`; `made` if there is none."""
    return _last_use(line.use_ptr, line.uses, line.use_len, tensor, made, before)


@njit(cache=True, nogil=True)
def next_use(line: Line, tensor: int, slot: int) -> int:
    """Slot of the first read of `tensor` after `slot`; the number of slots if there is none."""
    at = _reads_before(line.use_ptr, line.uses, line.use_len, tensor, slot + 1)
    if at < line.use_ptr[tensor] + line.use_len[tensor]:
        return int(line.uses[at])
    return len(line.op_at)


@njit(cache=True, nogil=True)
def _reads_before(use_ptr: Ints, uses: Ints, use_len: Ints, tensor: int, before: int) -> int:
    """Index of the first read of `tensor` at or after slot `before`."""
    low, high = use_ptr[tensor], use_ptr[tensor] + use_len[tensor]
    while low < high:
        middle = (low + high) >> 1
        if uses[middle] < before:
            low = middle + 1
        else:
            high = middle
    return int(low)


@njit(cache=True, nogil=True)
def _last_use(use_ptr: Ints, uses: Ints, use_len: Ints, tensor: int, made: int, before: int) -> int:
    at = _reads_before(use_ptr, uses, use_len, tensor, before)
    if at > use_ptr[tensor] and uses[at - 1] > made:
        return int(uses[at - 1])
    return made


@njit(cache=True, nogil=True)
def _effect(g: Arrays, line: Line, op: int, slot: int, sign: int) -> None:
    """Change of live bytes by a run of `op` at `slot`, on a line that does not hold it."""
    slots = len(line.op_at)
    total, best, runs, run_len = line.total, line.best, line.runs, line.run_len
    use_ptr, uses, use_len = line.use_ptr, line.uses, line.use_len
    here = 0
    after = 0
    saved = 0  # bytes of an input that this run overwrites
    for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
        t = g.in_idx[i]
        if g.output[t] == 1:
            continue
        p = g.producer[t]
        place = _run_before(runs, run_len, p, slot)
        made = runs[p, place - 1]
        again = runs[p, place] if place < run_len[p] else slots
        end = _last_use(use_ptr, uses, use_len, t, made, again)
        if slot > end:
            bump(total, best, end + 1, sign * g.size[t])
            after -= g.size[t]
            if g.overwrites[op] == t:
                saved = g.size[t]
            if end > made and g.overwrites[line.op_at[end]] == t:  # no longer the last read
                bump(total, best, end, sign * g.size[t])
                bump(total, best, end + 1, -sign * g.size[t])
    count = run_len[op]
    place = _run_before(runs, run_len, op, slot)
    following = runs[op, place] if place < count else slots
    for i in range(g.out_ptr[op], g.out_ptr[op + 1]):
        t = g.out_idx[i]
        size = g.size[t]
        here += size
        if g.output[t] == 1:
            if place > 0:  # a second copy, for this run only
                after -= size
            elif count > 0:  # so far made for good by a later run, from now on by this one
                bump(total, best, following + 1, -sign * size)
            continue
        end = _last_use(use_ptr, uses, use_len, t, slot, following)
        if place == 0 or end == slot:
            if end == slot:
                after -= size
            else:
                bump(total, best, end + 1, -sign * size)
        else:  # takes over the reads of the instance before
            old = _last_use(use_ptr, uses, use_len, t, runs[op, place - 1], slot)
            bump(total, best, old + 1, -sign * size)
            if old > runs[op, place - 1] and g.overwrites[line.op_at[old]] == t:
                bump(total, best, old, -sign * size)  # now the last read of the instance before
                bump(total, best, old + 1, sign * size)
    work = g.workspace[op]
    rework = g.rerun_workspace[op]
    if place > 0:
        work = rework
    elif count > 0 and rework != work:
        bump(total, best, following, sign * (rework - work))
        bump(total, best, following + 1, sign * (work - rework))
    bump(total, best, slot, sign * (here + work - saved))
    bump(total, best, slot + 1, sign * (after - work + saved))


@njit(cache=True, nogil=True)
def _insert(values: Ints, length: int, value: int) -> None:
    """Put `value` in its place among the first `length` ascending ones."""
    i = length
    while i > 0 and values[i - 1] > value:
        values[i] = values[i - 1]
        i -= 1
    values[i] = value


@njit(cache=True, nogil=True)
def _delete(values: Ints, length: int, value: int) -> None:
    """Take `value` out of the first `length` ascending ones."""
    i = length - 1
    held = values[i]
    while held != value:
        i -= 1
        held, values[i] = values[i], held


@njit(cache=True, nogil=True)
def fits(g: Arrays, line: Line, op: int) -> bool:
    """Whether the tables have room for one more run of `op`."""
    if line.run_len[op] >= line.runs.shape[1] or line.number[JOURNAL] + 2 >= len(line.journal):
        return False
    for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
        t = g.in_idx[i]
        if g.output[t] == 0 and line.use_len[t] >= line.use_ptr[t + 1] - line.use_ptr[t]:
            return False
    return True


@njit(cache=True, nogil=True)
def _put(g: Arrays, line: Line, op: int, slot: int) -> None:
    _effect(g, line, op, slot, 1)
    for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
        t = g.in_idx[i]
        if g.output[t] == 0:
            _insert(line.uses[line.use_ptr[t] :], line.use_len[t], slot)
            line.use_len[t] += 1
    _insert(line.runs[op], line.run_len[op], slot)
    line.run_len[op] += 1
    if line.run_len[op] == 2:
        line.multi[line.number[MULTI]] = op
        line.multi_at[op] = line.number[MULTI]
        line.number[MULTI] += 1
    line.op_at[slot] = op
    line.number[TIME] += g.time[op]
    line.number[COUNT] += 1


@njit(cache=True, nogil=True)
def _take(g: Arrays, line: Line, op: int, slot: int) -> None:
    for i in range(g.in_ptr[op], g.in_ptr[op + 1]):
        t = g.in_idx[i]
        if g.output[t] == 0:
            _delete(line.uses[line.use_ptr[t] :], line.use_len[t], slot)
            line.use_len[t] -= 1
    _delete(line.runs[op], line.run_len[op], slot)
    line.run_len[op] -= 1
    if line.run_len[op] == 1:
        last = line.multi[line.number[MULTI] - 1]
        line.multi[line.multi_at[op]] = last
        line.multi_at[last] = line.multi_at[op]
        line.multi_at[op] = -1
        line.number[MULTI] -= 1
    line.op_at[slot] = -1
    line.number[TIME] -= g.time[op]
    line.number[COUNT] -= 1
    _effect(g, line, op, slot, -1)


@njit(cache=True, nogil=True)
def add_run(g: Arrays, line: Line, op: int, slot: int) -> None:
    """Run `op` at the empty `slot`, which comes after the first runs of what it reads."""
    _put(g, line, op, slot)
    row = line.number[JOURNAL]
    line.journal[row, 0], line.journal[row, 1], line.journal[row, 2] = 1, op, slot
    line.number[JOURNAL] += 1


@njit(cache=True, nogil=True)
def remove_run(g: Arrays, line: Line, slot: int) -> None:
    """Do not run what runs at `slot`."""
    op = line.op_at[slot]
    _take(g, line, op, slot)
    row = line.number[JOURNAL]
    line.journal[row, 0], line.journal[row, 1], line.journal[row, 2] = -1, op, slot
    line.number[JOURNAL] += 1


@njit(cache=True, nogil=True)
def commit(line: Line) -> None:
    """Keep what was done."""
    line.number[JOURNAL] = 0


@njit(cache=True, nogil=True)
def roll_back(g: Arrays, line: Line) -> None:
    """Undo what was done since the last commit."""
    for row in range(line.number[JOURNAL] - 1, -1, -1):
        op, slot = line.journal[row, 1], line.journal[row, 2]
        if line.journal[row, 0] == 1:
            _take(g, line, op, slot)
        else:
            _put(g, line, op, slot)
    line.number[JOURNAL] = 0


@njit(cache=True, nogil=True)
def lay_out(g: Arrays, line: Line, computes: Ints, length: int) -> bool:
    """Put a sequence on the line, evenly spread; False if it is too long for it."""
    slots = len(line.op_at)
    line.op_at[:] = -1
    line.run_len[:] = 0
    line.use_len[:] = 0
    line.total[:] = 0
    line.best[:] = 0
    line.multi_at[:] = -1
    line.number[:] = 0
    if 2 * length + 2 > slots:
        return False
    for i in range(length):
        if not fits(g, line, computes[i]):
            return False
        slot = ((2 * i + 1) * (slots - 2)) // (2 * length)
        _put(g, line, computes[i], slot)
    return True


@njit(cache=True, nogil=True)
def read_out(line: Line, computes: Ints) -> int:
    """Write the sequence into `computes`; its length."""
    length = 0
    for slot in range(len(line.op_at)):
        if line.op_at[slot] >= 0:
            computes[length] = line.op_at[slot]
            length += 1
    return length
