"""Simulated annealing over execution sequences: any order, any op any number of times."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..control import Control
from ..graph import Graph, Op, Tensor
from .anneal import Found
from .evaluate import Arrays, arrays_of, cost
from .moves import (
    Extra,
    drop,
    list_live,
    random_recomputed,
    shift,
    shift_stretch,
    take_back,
)
from .state import TIME, Line, commit, excess, lay_out, line_for, peak_slot, read_out, roll_back

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from ..array_types import Ints

FIRST_PENALTY = 0.15
CHUNK, CHUNKS = 20_000, 60  # moves between two looks at the clock at most, and looks at least
UP, DOWN = 1.06, 1.03  # changes of the price of a byte, a look
COOLING = 1e-3  # last temperature as a share of the first


@njit(cache=True, nogil=True)
def _run_of(line: Line, op: int, order: float) -> int:
    """One of the runs of a recomputed op; not the first one if the order shall stay."""
    first = 1 if order == 0.0 else 0
    return int(np.random.randint(first, line.run_len[op]))  # noqa: NPY002


@njit(cache=True, nogil=True)
def _propose(g: Arrays, line: Line, extra: Extra, over: bool, where: int, order: float) -> bool:
    """Try one random move; whether anything changed."""
    kind = np.random.random()  # noqa: NPY002
    if kind < order:
        if kind < 0.15 * order:
            slot = np.random.randint(len(line.op_at) - 2)  # noqa: NPY002
            return shift_stretch(g, line, extra, slot, 1 + np.random.randint(12))  # noqa: NPY002
        op = np.random.randint(len(g.time))  # noqa: NPY002
        place = np.random.randint(line.run_len[op])  # noqa: NPY002
        return shift(g, line, extra, op, place, False)
    kind = (kind - order) / (1.0 - order)
    lazy = 0.0
    pick = np.random.random()  # noqa: NPY002
    if pick > 0.5:
        lazy = 1.0 if pick > 0.8 else 0.3
    if kind < (0.15 if over else 0.45):
        op = random_recomputed(line)
        if op < 0:
            return False
        return take_back(g, line, extra, op, _run_of(line, op, order))
    if kind < (0.3 if over else 0.6):  # exchange
        op = random_recomputed(line)
        if op < 0:
            return False
        if not take_back(g, line, extra, op, _run_of(line, op, order)):
            return False
        at = where
        if np.random.random() < 0.5:  # noqa: NPY002
            at = peak_slot(line)
        for _ in range(4):
            if extra.live_len[0] == 0:
                break
            t = extra.live[np.random.randint(extra.live_len[0])]  # noqa: NPY002
            if drop(g, line, extra, t, at, lazy):
                break
        return True
    if kind < (0.8 if over else 0.75):  # drop at the peak
        for _ in range(6):
            if extra.live_len[0] == 0:
                break
            t = extra.live[np.random.randint(extra.live_len[0])]  # noqa: NPY002
            if drop(g, line, extra, t, where, lazy):
                return True
        return False
    if kind < 0.9:  # a recomputed run elsewhere
        op = random_recomputed(line)
        if op < 0:
            return False
        return shift(g, line, extra, op, _run_of(line, op, order), True)
    if len(extra.chance) == 0:
        return False
    # Drop anything anywhere.
    at = np.searchsorted(extra.chance, np.random.random() * extra.chance[-1])  # noqa: NPY002
    t = min(len(extra.chance) - 1, at)
    p = g.producer[t]
    if p < 0 or extra.recompute[p] == 0 or g.output[t] == 1:
        return False
    made = line.runs[p, np.random.randint(line.run_len[p])]  # noqa: NPY002
    span = len(line.op_at) - made
    slot = made + 1 + int(span * np.random.random() ** 3)  # noqa: NPY002
    if slot >= len(line.op_at) - 1:
        return False
    return drop(g, line, extra, t, slot, lazy)


@njit(cache=True, nogil=True)
def _anneal(
    g: Arrays, line: Line, extra: Extra, computes: Ints, best: Ints, key: Ints, room: int,
    penalty: float, hot: float, cold: float, order: float, moves: int, seed: int,
) -> tuple[int, int]:  # fmt: skip
    """Anneal the sequence in `computes` in place; keep the best in `best`.

    `computes[0]` and `best[0]` are lengths. `key` is the excess and the time of the best. Returns
    how many moves ended above the budget, and how many were carried out.
    """
    np.random.seed(seed)  # noqa: NPY002
    if not lay_out(g, line, computes[1:], computes[0]):
        return -1, 0
    commit(line)
    time, peak = line.number[TIME], line.best[1]
    value = time + penalty * excess(line, room)
    where = peak_slot(line)
    list_live(g, line, extra, where)
    refresh = max(64, len(g.time) // 4)
    above = 0
    done = 0
    failed = 0
    for step in range(moves):
        if step % refresh == refresh - 1:
            list_live(g, line, extra, where)
        if not _propose(g, line, extra, peak > room, where, order):
            roll_back(g, line)
            failed += 1
            if peak > room:
                above += 1
            if failed > 3 * moves // 4 and failed > 1000:
                break
            continue
        done += 1
        new_time, new_peak = line.number[TIME], line.best[1]
        new_value = new_time + penalty * excess(line, room)
        temperature = hot * (cold / hot) ** (step / moves)
        change = new_value - value
        if change <= 0 or np.random.random() < np.exp(-change / temperature):  # noqa: NPY002
            commit(line)
            if new_peak != peak:
                where = peak_slot(line)
            time, peak, value = new_time, new_peak, new_value
            over = max(0, peak - room)
            if over < key[0] or (over == key[0] and time < key[1]):
                key[0], key[1] = over, time
                best[0] = read_out(line, best[1:])
        else:
            roll_back(g, line)
        if peak > room:
            above += 1
    computes[0] = read_out(line, computes[1:])
    return above, done


@dataclass
class SequenceSearch:
    """Local search over the execution sequences of one graph.

    Parameters
    ----------
    graph
        The graph.
    seed
        Of the moves; the same seed and number of moves give the same result.
    """

    graph: Graph
    seed: int

    def __post_init__(self) -> None:
        """Make the tables."""
        a = self.graph.arrays
        self.arrays = arrays_of(self.graph)
        self.line = line_for(self.arrays, np.arange(len(self.graph.ops)))
        weight = a.size * (a.producer >= 0) * (a.output == 0)
        self.extra = Extra(
            use_ptr=a.use_ptr, use_op=a.use_idx, recompute=a.recompute,
            chance=np.cumsum(weight.astype(np.float64)),
            live=np.zeros(len(a.size), dtype=np.int64), live_len=np.zeros(1, dtype=np.int64),
            stack=np.zeros(4096, dtype=np.int64),
        )  # fmt: skip
        self.base_time = max(1, int(a.time.sum()))
        self.moves_done = 0

    def improve(
        self,
        computes: Sequence[int],
        room: int,
        *,
        control: Control,
        moves: int,
        heat: float = 0.75,
        order: float = 0.3,
        price: float | None = None,
        enough: int | None = None,
        stop: threading.Event | None = None,
    ) -> Found:
        """Anneal from `computes` towards the fastest sequence within `room` bytes.

        Parameters
        ----------
        room
            Bytes without resident ones.
        moves
            How many to try; cut short by `control` and `stop`.
        heat
            First temperature in times of an average op.
        order
            Share of moves that only change the order; with 0 the order of first runs stays.
        price
            Fixed price of all bytes of `room` in times of the step; None: found on the way, so
            that the search hovers at the budget and settles below it.
        enough
            End once the best peak is at most so many bytes, of which there are more than of `room`;
            up to there the moves are the same for any value.
        """
        begin = np.array(computes, dtype=np.int64)
        if not lay_out(self.arrays, self.line, begin, len(begin)):  # more than the line can hold
            self.line = line_for(self.arrays, begin)
        current = np.zeros(len(self.line.op_at) + 1, dtype=np.int64)
        current[0] = len(begin)
        current[1 : len(begin) + 1] = begin
        best = current.copy()
        time, peak, _ = cost(self.arrays, current[1:], len(computes))
        key = np.array([max(0, peak - room), time], dtype=np.int64)
        first = price or FIRST_PENALTY
        if price is None and key[0] == 0:  # where bytes are dear already, start there
            first = max(first, 2.0 * (time / self.base_time - 1.0))
        penalty = first * self.base_time / max(1, room)
        hottest = heat * self.base_time / len(self.graph.ops)
        done = 0
        chunk = max(500, min(CHUNK, moves // CHUNKS))
        while done < moves and not control.over and not (stop is not None and stop.is_set()):
            share = done / moves
            self.seed += 1
            hot = hottest * COOLING**share
            above, ran = _anneal(
                self.arrays, self.line, self.extra, current, best, key, room, penalty, hot,
                hot * 0.9, order, chunk, self.seed % 2**31,
            )  # fmt: skip
            if above < 0:  # too much recomputation for the tables: start over from the best
                current[:] = best
                penalty /= 1.2
                done += chunk
                continue
            self.moves_done += ran
            done += chunk
            if enough is not None and room + key[0] <= enough:
                break
            if price is not None:
                continue
            high, low = (0.6, 0.3) if share < 0.7 else (0.3, 0.1)
            if above > high * chunk:
                penalty *= UP
            elif above < low * chunk:
                penalty /= DOWN
        found = tuple(best[1 : best[0] + 1].tolist())
        time, peak, _ = cost(self.arrays, best[1:], int(best[0]))
        return Found(found, int(time), int(peak))


@functools.cache
def compile_sequences() -> None:
    """Compile, or load from numba's cache, what `SequenceSearch` runs."""
    ops = tuple(Op(f"{i}", "", 1, (i - 1,) if i else (), (i,)) for i in range(4))
    graph = Graph("warm-up", ops, tuple(Tensor(f"{i}", 1) for i in range(4)))
    SequenceSearch(graph, 0).improve(range(4), 1, control=Control(), moves=1)
