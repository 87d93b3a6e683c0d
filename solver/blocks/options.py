"""What a block can do: how much it keeps for its backward part, and what that costs in time.

Each distinct block is a small problem of its own, solved once: which of its forward results are
kept across the border, and how long what is recomputed stays. Annealing on the exact evaluator
finds the Pareto points of bytes kept, bytes needed and time, as Rockmate's options per block
(Zhao et al. 2023) do with an integer program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ..search.evaluate import DROP, KEEP, KEEP_REMADE, expand

if TYPE_CHECKING:
    from ..array_types import Bools, Bytes, Floats, Ints
    from ..search.evaluate import Arrays
    from .block import Block

LEVELS = 40  # of bytes kept, for the cheapest way known at each
PRICES = 10  # of a byte kept, from nothing to all that is made
MOVES = 250  # of annealing at each price
MOST = 24  # options of a block
KEPT, PEAK, RISE, AGAIN, REMAKE = range(5)  # columns of an option's figures


@dataclass(frozen=True, eq=False)
class Options:
    """Ways to run one block.

    Attributes
    ----------
    figures
        (options, 5): bytes kept across the border beside what is handed on; most bytes during the
        backward part; most bytes during the forward part; nanoseconds of a further forward run that
        makes what is kept; nanoseconds of recomputation in the backward part. Bytes leave out what
        comes from blocks before, and count what the block keeps.
    backward
        Per option: ops of the block's graph to run from the border on.
    again
        Per option: ops of a further forward run.
    inner
        (ways, 2): most bytes, and nanoseconds of recomputation, of the backward part when nothing
        of the block is in memory at the border, nor what it handed on.
    inner_backward
        Per way: ops to run from the border on.
    passing
        Ops of a further forward run that only hands on.
    passing_ns, passing_bytes
        Their time, and the most bytes during them.
    """

    figures: Ints
    backward: list[list[int]]
    again: list[list[int]]
    inner: Ints
    inner_backward: list[list[int]]
    passing: list[int]
    passing_ns: int
    passing_bytes: int


def options_of(block: Block, seed: int = 0) -> Options:
    """The Pareto points of a block; the same seed finds the same ones."""
    arrays, border = block.arrays, block.border
    across, later = _gaps(block)
    forward_ns = max(1, int(arrays.time[:border].sum()))
    outer_rules = _archive(block, across, later, forward_ns, seed, inner=False)
    inner_rules = _archive(block, across, later, forward_ns, seed, inner=True)
    room = np.zeros(64 * len(arrays.time) + 64, dtype=np.int64)

    def run(rule: Bytes) -> tuple[list[int], Ints]:
        length = expand(arrays, rule, room)
        computes = room[:length]
        figures = measure(arrays, computes, border, block.handed)
        figures[PEAK] += block.through_bytes
        return computes[border + 1 :].tolist(), figures

    points = [(*run(rule), rule) for rule in outer_rules]
    points = _thin(_pareto(points, (KEPT, PEAK, REMAKE)), KEPT)
    inner = [(*run(rule), rule) for rule in inner_rules]
    inner = _thin(_pareto(inner, (PEAK, REMAKE)), PEAK)
    again = [_needed(block, ops) for ops, _, _ in points]
    for (_, figures, _), ops in zip(points, again, strict=True):
        figures[AGAIN] = int(arrays.time[ops].sum())
    passing = _needed(block, [])
    order = np.array([*passing, border], dtype=np.int64)
    passing_bytes = int(measure(arrays, order, border, block.handed)[RISE])
    return Options(
        figures=np.array([figures for _, figures, _ in points], dtype=np.int64),
        backward=[ops for ops, _, _ in points],
        again=again,
        inner=np.array([[f[PEAK], f[REMAKE]] for _, f, _ in inner], dtype=np.int64),
        inner_backward=[ops for ops, _, _ in inner],
        passing=passing,
        passing_ns=int(arrays.time[passing].sum()),
        passing_bytes=passing_bytes,
    )


def _gaps(block: Block) -> tuple[list[tuple[int, int]], list[int]]:
    """Gaps to decide on: those that span the border, with their tensors, and those after it."""
    graph, arrays, border = block.graph, block.arrays, block.border
    across: list[tuple[int, int]] = []
    later: list[int] = []
    for t in range(len(graph.tensors)):
        maker = int(arrays.producer[t])
        if not 0 <= maker < border or arrays.forced[t]:
            continue
        at = [maker, *graph.arrays.users(t).tolist()]
        for j in range(1, len(at)):
            gap = int(arrays.gap_ptr[t]) + j - 1
            if at[j - 1] <= border < at[j]:
                across.append((gap, t))
            elif at[j - 1] > border:
                later.append(gap)
        # A tensor that only recomputations read may be kept for them, after its last use.
        if at[-1] <= border:
            across.append((int(arrays.gap_ptr[t]) + len(at) - 1, t))
        else:
            later.append(int(arrays.gap_ptr[t]) + len(at) - 1)
    return across, later


def _archive(
    block: Block,
    across: list[tuple[int, int]],
    later: list[int],
    forward_ns: int,
    seed: int,
    *,
    inner: bool,
) -> list[Bytes]:
    """Rules that are cheapest for what they keep (or, `inner`, for what they need)."""
    arrays = block.arrays
    first = np.full(int(arrays.gap_ptr[-1]), KEEP, dtype=np.int8)
    free = [(gap, KEEP_REMADE) for gap, t in across if not inner and not block.handed[t]]
    free += [(gap, DROP) for gap in later]
    for gap, _ in across if inner else ():
        first[gap] = KEEP_REMADE
    gaps = np.array([gap for gap, _ in free], dtype=np.int64)
    other = np.array([value for _, value in free], dtype=np.int8)
    none = first.copy()
    none[gaps[other == KEEP_REMADE]] = KEEP_REMADE
    found = np.zeros((2 * LEVELS, len(first)), dtype=np.int8)
    best = np.full(2 * LEVELS, np.iinfo(np.int64).max, dtype=np.int64)
    room = np.zeros(64 * len(arrays.time) + 64, dtype=np.int64)
    total = np.zeros(2)
    for rule in (first, none):
        length = expand(arrays, rule, room)
        figures = measure(arrays, room[:length], block.border, block.handed)
        total = np.maximum(total, figures[[KEPT, PEAK]])
    starts = [first, none]
    for step in range(PRICES if len(gaps) else 1):
        share = 4.0 ** (step - PRICES / 2)
        price = np.zeros(2)
        price[1 if inner else 0] = share * forward_ns / max(1.0, total[1 if inner else 0])
        price[0 if inner else 1] = 1e-3 * forward_ns / max(1.0, total[0 if inner else 1])
        for start in starts:
            _anneal(
                arrays, start.copy(), gaps, other, block.border, block.handed, price, total,
                float(forward_ns), MOVES if len(gaps) else 0, seed, inner, found, best, room,
            )  # fmt: skip
    return [found[i] for i in range(2 * LEVELS) if best[i] < np.iinfo(np.int64).max]


@njit(cache=True, nogil=True)
def _anneal(
    g: Arrays, rule: Bytes, gaps: Ints, other: Bytes, border: int, handed: Bools, price: Floats,
    total: Floats, forward: float, moves: int, seed: int, inner: bool, found: Bytes, best: Ints,
    room: Ints,
) -> None:  # fmt: skip
    """Anneal at one price; keep in `found` the cheapest rule of each level of bytes."""
    np.random.seed(seed)  # noqa: NPY002 - numba's own generator
    levels = len(best) // 2
    value = np.inf
    for step in range(moves + 1):
        one = two = -1
        if step > 0:
            one = np.random.randint(len(gaps))  # noqa: NPY002
            if np.random.random() < 0.4:  # noqa: NPY002
                two = np.random.randint(len(gaps))  # noqa: NPY002
            rule[gaps[one]] = KEEP + other[one] - rule[gaps[one]]
            if two >= 0 and two != one:
                rule[gaps[two]] = KEEP + other[two] - rule[gaps[two]]
        length = expand(g, rule, room)
        after = np.inf
        if length >= 0:
            figures = measure(g, room[:length], border, handed)
            bytes_kept, peak, time = figures[KEPT], figures[PEAK], figures[REMAKE]
            after = time + price[0] * bytes_kept + price[1] * peak
            size = peak if inner else bytes_kept
            level = int(min(levels - 1, size * levels // max(1.0, total[1 if inner else 0])))
            if time < best[level]:
                best[level] = time
                found[level] = rule
            # And the one that needs least of about the same.
            if not inner and peak < best[levels + level]:
                best[levels + level] = peak
                found[levels + level] = rule
        heat = 0.03 * forward * (1.0 - step / (moves + 1.0)) ** 2 + 1e-9
        if after <= value or np.random.random() < np.exp((value - after) / heat):  # noqa: NPY002
            value = after
        else:
            rule[gaps[one]] = KEEP + other[one] - rule[gaps[one]]
            if two >= 0 and two != one:
                rule[gaps[two]] = KEEP + other[two] - rule[gaps[two]]


@njit(cache=True, nogil=True)
def measure(g: Arrays, computes: Ints, border: int, handed: Bools) -> Ints:
    """Figures of executions of a block: kept, peak, rise, 0, recomputation after the border.

    They are those of `simulate`, for speed, and steer only: what is composed of blocks is measured
    as a whole.
    """
    needed = np.zeros(len(g.size), dtype=np.bool_)
    left = np.zeros(len(g.time), dtype=np.int64)
    pinned = 0
    for i in range(len(computes)):
        op = computes[i]
        for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
            t = g.out_idx[j]
            if left[op] == 0 and g.output[t] == 1:
                pinned += g.size[t]
        left[op] += 1
    result = np.zeros(5, dtype=np.int64)
    live = 0
    before = False
    for i in range(len(computes) - 1, -1, -1):
        op = computes[i]
        left[op] -= 1
        made = 0
        taken = g.overwrites[op]
        if taken >= 0 and not needed[taken]:
            made -= g.size[taken]
        for j in range(g.out_ptr[op], g.out_ptr[op + 1]):
            t = g.out_idx[j]
            made += g.size[t]
            if g.output[t] == 1:
                if left[op] == 0:
                    pinned -= g.size[t]
            elif needed[t]:
                needed[t] = False
                live -= g.size[t]
        if op == border:
            before = True
            result[KEPT] = live
            for t in range(len(g.size)):
                if needed[t] and handed[t]:
                    result[KEPT] -= g.size[t]
        for j in range(g.in_ptr[op], g.in_ptr[op + 1]):
            t = g.in_idx[j]
            if g.output[t] == 0 and not needed[t]:
                needed[t] = True
                live += g.size[t]
        during = live + pinned + made
        during += g.workspace[op] if left[op] == 0 else g.rerun_workspace[op]
        if before and op != border:
            result[RISE] = max(result[RISE], during)
        elif not before:
            result[PEAK] = max(result[PEAK], during)
            if op < border:
                result[REMAKE] += g.time[op]
    return result


def _needed(block: Block, backward: list[int]) -> list[int]:
    """Forward ops to run for what is handed on and what `backward` finds in memory."""
    arrays, graph = block.arrays, block.graph
    wanted: set[int] = set()
    for op in reversed(backward):
        wanted.difference_update(graph.ops[op].outputs)
        wanted.update(graph.arrays.inputs(op).tolist())
    wanted = {t for t in wanted if arrays.producer[t] < block.border}
    wanted |= set(np.flatnonzero(block.handed).tolist())
    run: set[int] = set()
    stack = [int(arrays.producer[t]) for t in wanted if not arrays.forced[t]]
    while stack:
        op = stack.pop()
        if op in run or not graph.ops[op].recompute:
            continue
        run.add(op)
        for t in graph.arrays.inputs(op).tolist():
            if not arrays.forced[t]:
                stack.append(int(arrays.producer[t]))
    return sorted(run)


def _pareto(
    points: list[tuple[list[int], Ints, Bytes]], columns: tuple[int, ...]
) -> list[tuple[list[int], Ints, Bytes]]:
    """Points that no other one beats in all columns, the fastest first."""
    chosen: list[tuple[list[int], Ints, Bytes]] = []
    key = columns[::-1]
    for point in sorted(points, key=lambda it: tuple(int(it[1][c]) for c in key)):
        if not any(all(it[1][c] <= point[1][c] for c in columns) for it in chosen):
            chosen.append(point)
    return chosen


def _thin(
    points: list[tuple[list[int], Ints, Bytes]], column: int
) -> list[tuple[list[int], Ints, Bytes]]:
    """At most `MOST` of them, evenly spread by what is in `column`, both ends included."""
    points = sorted(points, key=lambda it: int(it[1][column]))
    if len(points) <= MOST:
        return points
    places = {round(i * (len(points) - 1) / (MOST - 1)) for i in range(MOST)}
    return [points[i] for i in sorted(places)]
