"""Composing blocks: the persistent dynamic program of rotor over stretches of the chain.

`V[i..j](m)` is the least recomputation that takes blocks i..j from the input of block i, in memory
already, to its gradient, with m bytes beside that input (Herrmann et al. 2019; Beaumont et al.
2019; with several options a block: Zhao et al. 2023):

    V[i..i](m) = the cheapest way to run the backward part of block i with nothing kept
    V[i..j](m) = min of
        keep of block i what option o says:     again + remake + V[i+1..j](m - kept - input of i+1)
        keep the input of block k only:         passing i..k-1 + V[k..j](m - input of k)
                                                              + V[i..k-1](m - gradients of k..j)

where gradients of parameters, once made, stay. Two stretches of the same classes of blocks have the
same V, whatever their place: in a deep network of one kind of block only the length counts. Forward
runs of stretches that end with the last block are the first ones, which every schedule has: free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from .options import AGAIN, KEPT, PEAK, REMAKE, RISE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..array_types import Floats, Ints
    from ..control import Control
    from .block import Block
    from .options import Options

    Choices = npt.NDArray[np.int32]

INNER = -1000  # choices: k - i; -1 - o for option o; INNER - w for way w
NOTHING = -(2**31)


class Tables(NamedTuple):
    """The chain as the compiled recurrence reads it; bytes are whole bytes.

    Attributes
    ----------
    input_bytes
        Per block and one more: what crosses the border before it in the forward phase.
    gradient_bytes
        Per block and one more: what crosses the border before it in the backward phase.
    pinned
        Per block and one more: parameter gradients of the blocks before it.
    passing_ns, passing_bytes
        Per block: a further forward run that only hands on.
    option_ptr, figures
        Per block: its options, as in `Options.figures`.
    way_ptr, ways
        Per block: its ways with nothing kept, as in `Options.inner`.
    """

    input_bytes: Ints
    gradient_bytes: Ints
    pinned: Ints
    passing_ns: Ints
    passing_bytes: Ints
    option_ptr: Ints
    figures: Ints
    way_ptr: Ints
    ways: Ints


def tables_of(blocks: Sequence[Block], options: Sequence[Options], chain: Sequence[int]) -> Tables:
    """Tables of a chain of blocks, given as class numbers."""
    pinned = np.zeros(len(chain) + 1, dtype=np.int64)
    np.cumsum([blocks[c].pinned_bytes for c in chain], out=pinned[1:])
    gradients = [0, *(blocks[c].gradient_bytes for c in chain)]
    option_ptr = np.zeros(len(chain) + 1, dtype=np.int64)
    np.cumsum([len(options[c].figures) for c in chain], out=option_ptr[1:])
    way_ptr = np.zeros(len(chain) + 1, dtype=np.int64)
    np.cumsum([len(options[c].inner) for c in chain], out=way_ptr[1:])
    return Tables(
        input_bytes=np.array([*(blocks[c].input_bytes for c in chain), 0], dtype=np.int64),
        gradient_bytes=np.array(gradients, dtype=np.int64),
        pinned=pinned,
        passing_ns=np.array([options[c].passing_ns for c in chain], dtype=np.int64),
        passing_bytes=np.array([options[c].passing_bytes for c in chain], dtype=np.int64),
        option_ptr=option_ptr,
        figures=np.concatenate([options[c].figures for c in chain]),
        way_ptr=way_ptr,
        ways=np.concatenate([options[c].inner for c in chain]),
    )


@dataclass(frozen=True, eq=False)
class Solution:
    """Values and choices of all stretches, for every number of memory slots.

    Attributes
    ----------
    number
        (blocks, blocks): row of stretch i..j in `value` and `choice`.
    value, choice
        (stretches, slots + 1): nanoseconds of recomputation, and what to do.
    slot
        Bytes of a slot.
    """

    tables: Tables
    number: Ints
    value: Floats
    choice: Choices
    slot: float

    def smallest(self) -> int:
        """Least slots with which the whole chain can be run; -1 if even the most are too few."""
        whole = self.value[self.number[0, -1]]
        able = np.flatnonzero(np.isfinite(whole))
        return int(able[0]) if len(able) else -1


def solve_chain(
    tables: Tables, number: Ints, firsts: Ints, slot: float, slots: int, control: Control
) -> Solution | None:
    """Fill the tables, shorter stretches first; None if time is over before that.

    Parameters
    ----------
    number, firsts
        As `classes.stretches` makes them.
    slot, slots
        Bytes of a memory slot, and how many there are at most.
    """
    value = np.full((len(firsts), slots + 1), np.inf)
    choice = np.full((len(firsts), slots + 1), NOTHING, dtype=np.int32)
    step = max(1, len(firsts) // 50)
    for start in range(0, len(firsts), step):
        if control.over:
            return None
        _fill(tables, number, firsts, slot, start, min(start + step, len(firsts)), value, choice)
    return Solution(tables, number, value, choice, slot)


@njit(cache=True, nogil=True)
def slots_of(size: float, slot: float) -> int:
    """Slots for so many bytes: to the nearest, but what takes few of them is rounded up.

    What is rounded down comes out when the schedule is measured: the dynamic program is then told
    that it has less memory. Rounding all up would waste up to a slot a block.
    """
    share = size / slot
    return int(np.ceil(share - (0.5 if share >= 4.0 else 0.02)))


@njit(cache=True, nogil=True)
def _fill(
    t: Tables, number: Ints, firsts: Ints, slot: float, start: int, end: int, value: Floats,
    choice: Choices,
) -> None:  # fmt: skip
    last = len(number) - 1
    most = value.shape[1] - 1
    for row in range(start, end):
        i, j = firsts[row, 0], firsts[row, 1]
        best, what = value[row], choice[row]
        first_run = j == last
        above = t.gradient_bytes[j + 1]
        if i == j:
            for way in range(t.way_ptr[i], t.way_ptr[i + 1]):
                need = slots_of(max(t.ways[way, 0], t.passing_bytes[i] + above), slot)
                for m in range(need, most + 1):
                    if t.ways[way, 1] < best[m]:
                        best[m] = t.ways[way, 1]
                        what[m] = INNER - (way - t.way_ptr[i])
            for o in range(t.option_ptr[i], t.option_ptr[i + 1] if first_run else 0):
                need = slots_of(max(t.figures[o, PEAK], t.figures[o, RISE] + above), slot)
                for m in range(need, most + 1):
                    if t.figures[o, REMAKE] < best[m]:
                        best[m] = t.figures[o, REMAKE]
                        what[m] = -1 - (o - t.option_ptr[i])
            continue
        rest = value[number[i + 1, j]]
        behind = t.pinned[j + 1] - t.pinned[i + 1]
        for o in range(t.option_ptr[i], t.option_ptr[i + 1]):
            taken = slots_of(t.figures[o, KEPT] + t.input_bytes[i + 1], slot)
            need = slots_of(max(t.figures[o, PEAK] + behind, t.figures[o, RISE] + above), slot)
            spent = t.figures[o, REMAKE] + (0 if first_run else t.figures[o, AGAIN])
            for m in range(max(need, taken), most + 1):
                if spent + rest[m - taken] < best[m]:
                    best[m] = spent + rest[m - taken]
                    what[m] = -1 - (o - t.option_ptr[i])
        forward = 0
        peak = 0
        for k in range(i + 1, j + 1):
            if not first_run:
                forward += t.passing_ns[k - 1]
            inside = t.passing_bytes[k - 1] + (t.input_bytes[k - 1] if k - 1 > i else 0)
            peak = max(peak, inside)
            taken = slots_of(t.input_bytes[k], slot)
            stays = slots_of(t.pinned[j + 1] - t.pinned[k], slot)
            need = max(slots_of(peak + above, slot), taken, stays)
            right, left = value[number[k, j]], value[number[i, k - 1]]
            for m in range(need, most + 1):
                spent = forward + right[m - taken] + left[m - stays]
                if spent < best[m]:
                    best[m] = spent
                    what[m] = k - i
