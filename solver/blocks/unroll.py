"""From the choices of the dynamic program to the order in which ops run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .chain import INNER, NOTHING, slots_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .block import Block
    from .chain import Solution
    from .cut import Cuts
    from .options import Options


def unroll(
    solution: Solution,
    memory: int,
    chain: Sequence[int],
    starts: Sequence[int],
    blocks: Sequence[Block],
    options: Sequence[Options],
    cuts: Cuts,
) -> list[int]:
    """Executions of the best way to run the whole chain in `memory` slots, which must exist.

    Parameters
    ----------
    chain, starts
        Class of each block, and the first of the original blocks in it.
    blocks, options
        Of each class.
    """
    tables, slot = solution.tables, solution.slot
    last = len(chain) - 1
    edges = [*starts, len(cuts.forward) - 1]
    computes: list[int] = []

    def forward(block: int, ops: Sequence[int] | None) -> None:
        start = cuts.forward[edges[block]]
        if ops is None:
            computes.extend(range(start, cuts.forward[edges[block + 1]]))
        else:
            computes.extend(start + op for op in ops)

    def backward(block: int, ops: Sequence[int]) -> None:
        start = cuts.forward[edges[block]]
        border = blocks[chain[block]].border
        shift = cuts.backward[edges[block + 1]] - border - 1
        computes.extend(start + op if op < border else shift + op for op in ops)

    # Stretches (i, j, memory) to run, or backward parts (block, option, -1); the next one on top.
    todo: list[tuple[int, int, int]] = [(0, last, memory)]
    while todo:
        i, j, m = todo.pop()
        if m < 0:
            backward(i, options[chain[i]].backward[j])
            continue
        what = int(solution.choice[solution.number[i, j], m])
        assert what != NOTHING
        here = options[chain[i]]
        first_run = j == last
        if what <= INNER:
            if first_run:
                forward(i, None)
            backward(i, here.inner_backward[INNER - what])
        elif what < 0:
            option = -1 - what
            forward(i, None if first_run else here.again[option])
            todo.append((i, option, -1))
            if j > i:
                kept = here.figures[option, 0] + tables.input_bytes[i + 1]
                todo.append((i + 1, j, m - slots_of(kept, slot)))
        else:
            k = i + what
            for block in range(i, k):
                forward(block, None if first_run else options[chain[block]].passing)
            stays = tables.pinned[j + 1] - tables.pinned[k]
            todo.append((i, k - 1, m - slots_of(stays, slot)))
            todo.append((k, j, m - slots_of(tables.input_bytes[k], slot)))
    return computes
