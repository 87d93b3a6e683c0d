"""`plan_blocks`: a schedule of a network of repeated blocks, at about linear cost in its depth.

Blocks are found from the graph (`cut`, `classes`), each distinct one is solved once (`options`),
and the chain of them is composed by dynamic programming (`chain`). What comes out is measured
exactly; the dynamic program counts memory in rounded slots, so the amount it is given is moved
until the measured peak is just within the room.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..control import Control
from ..graph import Graph, Op, Tensor
from ..search.anneal import Found
from ..search.evaluate import arrays_of, cost
from .block import block_of
from .chain import solve_chain, tables_of
from .classes import classes, merge_most_frequent, stretches
from .cut import find_cuts
from .options import options_of
from .unroll import unroll

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .block import Block
    from .chain import Solution
    from .cut import Cuts
    from .options import Options

SPARE = 1.25  # the dynamic program is told of up to so much more memory than there is
WORK = 200_000_000  # slots times stretches times borders: half a second or so
FEWEST, MOST_SLOTS = 192, 4096  # slots of memory, over what there is room for
LONGEST = 1200  # blocks of a chain
ROWS = 30_000  # stretches that the tables may hold
SHRINK = 2.5  # between chains of coarser and coarser blocks
LARGEST = 120  # forward ops of a block that is made of several
DISTINCT = 4000  # ops of all distinct blocks together: solving them takes a second or so


@dataclass(frozen=True, eq=False)
class Chain:
    """A graph as a chain of blocks, each class of them solved.

    Attributes
    ----------
    sequence, starts
        Class of each block, and its first original block.
    blocks, options
        Per class; classes that merging left unused are missing from `sequence` only.
    """

    graph: Graph
    cuts: Cuts
    sequence: list[int]
    starts: list[int]
    blocks: list[Block]
    options: list[Options]


def find_chains(graph: Graph, control: Control, seed: int = 0) -> Iterator[Chain]:
    """The blocks of `graph`, found and solved; then coarser and coarser ones.

    Long blocks know more ways to keep a part of what they make, and leave more slots of memory to
    each; short ones recompute in smaller pieces. None come if the graph does not fall into blocks
    that are few or alike; the last ones are left out once time is over.
    """
    for cuts in find_cuts(graph):
        yield from _coarser(graph, cuts, control, seed)


def _coarser(graph: Graph, cuts: Cuts, control: Control, seed: int) -> Iterator[Chain]:
    sequence = classes(graph, cuts)
    starts = list(range(len(sequence)))
    solved: dict[tuple[int, int], tuple[Block, Options]] = {}
    length = float(LONGEST)
    while len(sequence) > 2 and not control.over:
        fits = len(sequence) <= length and _slots(sequence) >= FEWEST
        if fits and _distinct_ops(cuts, sequence, starts) <= DISTINCT:
            chain = _solved(graph, cuts, sequence, starts, solved, control, seed)
            if chain is None:
                return
            yield chain
            length = len(sequence) / SHRINK
        shorter, begin = merge_most_frequent(sequence, starts)
        if len(shorter) == len(sequence) or _longest(cuts, begin) > LARGEST:
            return
        sequence, starts = shorter, begin


def _solved(
    graph: Graph,
    cuts: Cuts,
    sequence: list[int],
    starts: list[int],
    solved: dict[tuple[int, int], tuple[Block, Options]],
    control: Control,
    seed: int,
) -> Chain | None:
    """The chain with options for each class; None if time is over first."""
    names = {name: i for i, name in enumerate(dict.fromkeys(sequence))}
    sequence = [names[name] for name in sequence]
    edges = [*starts, len(cuts.forward) - 1]
    blocks: list[Block] = []
    options: list[Options] = []
    for number in range(len(names)):
        if control.over:
            return None
        places = [i for i, it in enumerate(sequence) if it == number]
        first, size = starts[places[0]], edges[places[0] + 1] - edges[places[0]]
        if (first, size) not in solved:  # coarser chains share blocks with finer ones
            block = block_of(graph, cuts, [starts[i] for i in places], size)
            solved[first, size] = block, options_of(block, seed)
        blocks.append(solved[first, size][0])
        options.append(solved[first, size][1])
    return Chain(graph, cuts, sequence, starts, blocks, options)


def plan_blocks(
    graph: Graph,
    room: int,
    control: Control,
    *,
    seed: int = 0,
    chains: Iterable[Chain] | None = None,
) -> Found | None:
    """The fastest composition of blocks within `room` bytes, resident bytes not counted.

    Parameters
    ----------
    chains
        `find_chains(graph, control, seed)`, if the caller keeps them for other budgets.

    Returns
    -------
    Found or None
        None if the graph is no chain of blocks, if no composition fits, or if time is over before
        any is found.
    """
    best: Found | None = None
    for chain in chains or find_chains(graph, control, seed):
        found = _compose(chain, room, control)
        if found is not None and (best is None or found.time < best.time):
            best = found
    return best


def _compose(chain: Chain, room: int, control: Control) -> Found | None:
    free = room - constant_bytes(chain.graph, chain.cuts)
    if free <= 0:
        return None
    number, firsts = stretches(chain.sequence)
    tables = tables_of(chain.blocks, chain.options, chain.sequence)
    slot = _slot_bytes(tables.input_bytes.tolist(), free, _slots(chain.sequence))
    slots = int(SPARE * free / slot) + 1
    solution = solve_chain(tables, number, firsts, slot, slots, control)
    if solution is None or solution.smallest() < 0:
        return None
    return _just_within(chain, solution, room, slots, control)


def constant_bytes(graph: Graph, cuts: Cuts) -> int:
    """Bytes that stay whatever is decided: outputs of the forward phase, and what is long-lived."""
    forward = (cuts.made >= 0) & (cuts.made < cuts.forward[-1])
    return int(graph.arrays.size[forward & cuts.kept].sum())


def _just_within(
    chain: Chain, solution: Solution, room: int, slots: int, control: Control
) -> Found | None:
    """The best schedule that fits, over the memory that the dynamic program is told it has."""
    arrays = arrays_of(chain.graph)
    best: Found | None = None

    def attempt(memory: int) -> bool:
        """Whether what comes out of so many slots fits."""
        nonlocal best
        computes = unroll(
            solution, memory, chain.sequence, chain.starts, chain.blocks, chain.options, chain.cuts
        )
        time, peak, _ = cost(arrays, np.array(computes, dtype=np.int64), len(computes))
        if peak <= room and (best is None or time < best.time):
            best = Found(tuple(computes), int(time), int(peak))
        return bool(peak <= room)

    low, high = solution.smallest(), slots
    if attempt(high) or not attempt(low):
        return best
    while high - low > 1 and not control.over:
        middle = (low + high) // 2
        if attempt(middle):
            low = middle
        else:
            high = middle
    return best


def _slot_bytes(inputs: list[int], room: int, slots: int) -> float:
    """Bytes of a slot such that what most borders hold is a whole number of slots."""
    slot = room / slots
    usual = Counter(size for size in inputs if size > 0).most_common(1)
    if not usual or usual[0][0] < slot:
        return slot
    return usual[0][0] / round(usual[0][0] / slot)


def _slots(sequence: list[int]) -> int:
    """How many slots of memory the dynamic program over a chain can afford."""
    if len(sequence) > LONGEST:
        return 0
    firsts = stretches(sequence)[1]
    if len(firsts) > ROWS:
        return 0
    work = int((firsts[:, 1] - firsts[:, 0]).sum())
    return min(MOST_SLOTS, int(WORK / SPARE / max(1, work)), 8 * ROWS * 192 // len(firsts))


def _distinct_ops(cuts: Cuts, sequence: list[int], starts: list[int]) -> int:
    """Ops of all distinct blocks together."""
    edges = [*starts, len(cuts.forward) - 1]
    total = 0
    for number in set(sequence):
        place = sequence.index(number)
        first, end = edges[place], edges[place + 1]
        total += cuts.forward[end] - cuts.forward[first]
        total += cuts.backward[first] - cuts.backward[end]
    return total


def _longest(cuts: Cuts, starts: list[int]) -> int:
    """Forward ops of the largest block that is made of several."""
    edges = [*starts, len(cuts.forward) - 1]
    return max(
        (cuts.forward[b] - cuts.forward[a] for a, b in pairwise(edges) if b - a > 1), default=0
    )


@functools.cache
def compile_blocks() -> None:
    """Compile, or load from numba's cache, what this runs; the clock of a solve starts after."""
    count = 4
    chain = [Op(f"{i}", "", 1, (i - 1,) if i else (), (i,), phase="forward") for i in range(count)]
    border = Op("border", "", 0, (), (count,), recompute=False, phase="backward")
    backward = [
        Op(f"{i}", "", 1, (i - 1, 2 * count - i), (i,), phase="backward")
        for i in range(count + 1, 2 * count + 1)
    ]
    tensors = tuple(Tensor(f"{i}", 1) for i in range(2 * count + 1))
    plan_blocks(Graph("warm-up", (*chain, border, *backward), tensors), count, Control())
