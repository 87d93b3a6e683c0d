"""Simulated annealing over keep rules: cost plus a penalty for bytes above the budget.

Moves: one gap, all gaps of a tensor, an exchange between two nearby gaps, and moves aimed at what
is in memory at the peak. Each move is evaluated exactly. The idea of searching schedules by
annealing on an exact evaluator is that of FastSA (Imanishi et al. 2023); the space here is smaller
(the base order is kept) and starts from solutions of the relaxed integer program.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..control import Control
from ..graph import Graph, Op, Tensor
from .evaluate import (
    DROP,
    KEEP,
    KEEP_BOTH,
    KEEP_REMADE,
    Arrays,
    arrays_of,
    cost,
    expand,
    expand_carried,
)
from .gaps import Gaps, gaps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..array_types import Bools, Bytes, Floats, Ints

# Moves between two looks at the clock: at most the first, and about the second over the ops.
CHUNK = 1000
CHUNK_WORK = 200_000
# First price of a byte above the budget, in step times per budget: about what saving one costs.
FIRST_PENALTY = 0.15


@njit(cache=True, nogil=True)
def _seed(value: int) -> None:
    np.random.seed(value)  # noqa: NPY002 - numba's own generator


@njit(cache=True, nogil=True)
def _pick(weight: Floats) -> int:
    """An index, half of the time uniform, else by cumulative weight."""
    if np.random.random() < 0.5:  # noqa: NPY002
        return int(np.random.randint(len(weight)))  # noqa: NPY002
    at = np.searchsorted(weight, np.random.random() * weight[-1])  # noqa: NPY002
    return int(min(len(weight) - 1, at))


@njit(cache=True, nogil=True)
def _propose(rule: Bytes, trial: Bytes, gaps: Gaps, ptr: Ints, over: bool, where: int) -> None:
    """Write a neighbour of `rule` into `trial`."""
    trial[:] = rule
    kind = np.random.random()  # noqa: NPY002
    at = _pick(gaps.weight)
    pick = gaps.movable[at]
    value = np.random.randint(4)  # noqa: NPY002
    if kind < 0.33:  # aim at the peak, or at what is recomputed
        for _ in range(30):
            pick = gaps.movable[_pick(gaps.weight)]
            kept = rule[pick] == KEEP or rule[pick] == KEEP_BOTH
            if over and kept and gaps.begin[pick] < where < gaps.end[pick]:
                trial[pick] = DROP if np.random.random() < 0.25 else KEEP_REMADE  # noqa: NPY002
                return
            if not over and not kept:
                trial[pick] = KEEP if np.random.random() < 0.7 else KEEP_BOTH  # noqa: NPY002
                return
        trial[pick] = value
    elif kind < 0.63:
        trial[pick] = value
    elif kind < 0.70:
        t = gaps.owner[pick]
        for gap in range(ptr[t], ptr[t + 1]):
            trial[gap] = value
    elif kind < 0.90:  # exchange
        for _ in range(20):
            at = _pick(gaps.weight)
            other_at = at + np.random.randint(-25, 26)  # noqa: NPY002
            if other_at < 0 or other_at >= len(gaps.movable):
                continue
            one, other = gaps.movable[at], gaps.movable[other_at]
            if rule[one] != rule[other]:
                trial[one], trial[other] = rule[other], rule[one]
                return
        trial[pick] = value
    else:  # the same in several repeated blocks
        first, last = gaps.alike_ptr[gaps.alike_of[at]], gaps.alike_ptr[gaps.alike_of[at] + 1]
        low = np.random.randint(first, last)  # noqa: NPY002
        high = np.random.randint(first, last)  # noqa: NPY002
        if low > high:
            low, high = high, low
        other_at = at + np.random.randint(-25, 26)  # noqa: NPY002
        if kind < 0.95 or other_at < 0 or other_at >= len(gaps.movable):
            for i in range(low, high + 1):
                trial[gaps.alike_idx[i]] = value
            return
        second = gaps.alike_ptr[gaps.alike_of[other_at]]
        size = gaps.alike_ptr[gaps.alike_of[other_at] + 1] - second
        if size != last - first:
            trial[pick] = value
            return
        for i in range(low, high + 1):
            one, other = gaps.alike_idx[i], gaps.alike_idx[second + i - first]
            trial[one], trial[other] = rule[other], rule[one]


@njit(cache=True, nogil=True)
def _anneal(
    g: Arrays, rule: Bytes, best: Bytes, best_key: Ints, gaps: Gaps, room: int, penalty: float,
    hot: float, cold: float, moves: int, computes: Ints,
) -> int:  # fmt: skip
    """Anneal `rule` in place; keep the best in `best`, its excess and time in `best_key`.

    Returns how many of the moves ended above the budget.
    """
    trial = rule.copy()
    length = expand(g, rule, computes)
    time, peak, where = cost(g, computes, length)
    value = time + penalty * max(0, peak - room)
    above = 0
    for step in range(moves):
        _propose(rule, trial, gaps, g.gap_ptr, peak > room, where)
        length = expand(g, trial, computes)
        if length < 0:
            continue
        new_time, new_peak, new_where = cost(g, computes, length)
        new_value = new_time + penalty * max(0, new_peak - room)
        temperature = hot * (cold / hot) ** (step / moves)
        change = new_value - value
        if change <= 0 or np.random.random() < np.exp(-change / temperature):  # noqa: NPY002
            rule[:] = trial
            time, peak, where, value = new_time, new_peak, new_where, new_value
            excess = max(0, peak - room)
            if excess < best_key[0] or (excess == best_key[0] and time < best_key[1]):
                best_key[0] = excess
                best_key[1] = time
                best[:] = rule
        if peak > room:
            above += 1
    return above


@dataclass
class Found:
    """A sequence of executions, its time, and its peak without resident bytes."""

    computes: tuple[int, ...]
    time: int
    peak: int


@functools.cache
def compile_search() -> None:
    """Compile, or load from numba's cache, what searches run; the clock of a solve starts after."""
    ops = tuple(Op(f"{i}", "", 1, (0, i - 1) if i > 1 else (0,) * i, (i,)) for i in range(4))
    graph = Graph("warm-up", ops, tuple(Tensor(f"{i}", 1) for i in range(4)))
    search = Search(graph, 0)
    rule = search.rule_of(range(4))
    search.improve(rule, 1, control=Control(), seconds=60.0, moves=1)
    none = np.zeros((1, 4), dtype=np.bool_)
    search.realise_carried(np.zeros(1, dtype=np.int64), none, none)


class Search:
    """Local search for one graph; the same seed gives the same moves.

    Parameters
    ----------
    graph
        The graph.
    seed
        Of the moves.
    """

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.arrays = arrays_of(graph)
        self._seed = seed
        count = len(graph.ops)
        self._buffer = np.zeros(12 * count + 1000, dtype=np.int64)
        self.gaps = gaps_of(graph, self.arrays)
        self.movable = self.gaps.movable
        self.base_time = max(1, int(graph.arrays.time.sum()))

    def measure(self, computes: Sequence[int]) -> Found:
        """Time and peak of a sequence."""
        array = np.array(computes, dtype=np.int64)
        time, peak, _ = cost(self.arrays, array, len(array))
        return Found(tuple(computes), int(time), int(peak))

    def realise(self, rule: Bytes) -> Found | None:
        """The schedule that a rule leads to; None if it recomputes absurdly much."""
        length = expand(self.arrays, rule, self._buffer)
        return None if length < 0 else self.measure(self._buffer[:length].tolist())

    def realise_carried(self, first: Ints, carried: Bools, again: Bools) -> Found | None:
        """The schedule of a solution of the staged program; see `expand_carried`."""
        length = expand_carried(self.arrays, first, carried, again, self._buffer)
        return None if length < 0 else self.measure(self._buffer[:length].tolist())

    def rule_of(self, computes: Sequence[int]) -> Bytes:
        """A rule that leads to a schedule like `computes`."""
        producer = self.graph.arrays.producer
        rule = np.full(int(self.arrays.gap_ptr[-1]), 1, dtype=np.int8)
        stage_runs: dict[int, list[int]] = {}
        seen: set[int] = set()
        pending: list[int] = []
        for op in computes:
            if op not in seen:
                seen.add(op)
                for again in pending:
                    stage_runs.setdefault(again, []).append(op)
                pending = []
            else:
                pending.append(op)
        for gap in range(len(rule)):
            runs = stage_runs.get(int(producer[self.gaps.owner[gap]]), ())
            inside = [b for b in runs if self.gaps.begin[gap] < b <= self.gaps.end[gap]]
            if inside:
                # Made once: what may be made earlier for something else shall then stay.
                rule[gap] = KEEP_REMADE if len(inside) == 1 else DROP
        return rule

    def improve(
        self,
        rule: Bytes,
        room: int,
        *,
        control: Control,
        seconds: float,
        moves: int | None = None,
        heat: float = 1e-4,
    ) -> tuple[Bytes, Found | None]:
        """Anneal from `rule` towards the cheapest schedule within `room` bytes (without resident).

        Parameters
        ----------
        seconds, moves
            Stop after that time, or after that many moves if they are given and come first.
        heat
            First temperature as a share of the step's time.
        """
        if len(self.movable) == 0:
            return rule, self.realise(rule)
        self._seed += 1
        _seed(self._seed)
        current, best = rule.copy(), rule.copy()
        start = self.realise(rule)
        infinite = np.iinfo(np.int64).max
        key = np.array([infinite, infinite], dtype=np.int64)
        if start is not None:
            key[:] = max(0, start.peak - room), start.time
        penalty = FIRST_PENALTY * self.base_time / max(1, room)
        begun = control.elapsed
        done = 0
        rescue = False
        cold = heat * 1e-3
        chunk = max(20, min(CHUNK, CHUNK_WORK // len(self.graph.ops)))
        while not control.over:
            share = 0.0 if moves is None else done / moves
            if moves is None or not control.repeatable:
                share = max(share, (control.elapsed - begun) / seconds)
            if share >= 1.0 and key[0] > 0 and not rescue:
                # Nothing within the budget yet: a while longer, with bytes dear.
                rescue = True
                penalty = max(penalty, 3.0 * self.base_time / max(1, room))
            if share >= (1.3 if rescue else 1.0):
                break
            share = min(share, 1.0)
            hot = self.base_time * heat * (cold / heat) ** share
            above = _anneal(
                self.arrays, current, best, key, self.gaps, room, penalty, hot, hot * 0.9, chunk,
                self._buffer,
            )  # fmt: skip
            done += chunk
            # Hover at the budget, and settle below it towards the end.
            high, low = (0.6, 0.3) if share < 0.7 else (0.3, 0.1)
            if above > high * chunk:
                penalty *= 1.3
            elif above < low * chunk:
                penalty /= 1.15
        return best, self.realise(best)
