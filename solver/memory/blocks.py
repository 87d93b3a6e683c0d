"""What a schedule needs memory for, and from when to when.

Time is counted in executions. A block is live from the execution that makes it to the one after
which it is freed, both included. An output that overwrites an input stands in the input's block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..graph import Graph


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that stay in one place.

    Attributes
    ----------
    size_bytes
        How many.
    first, last
        Executions between which it is live, both included.
    makes
        Pairs (execution, tensor): what is made there, one after the other; empty for the workspace
        of execution `first`.
    """

    size_bytes: int
    first: int
    last: int
    makes: tuple[tuple[int, int], ...] = ()


def blocks_of(graph: Graph, steps: Iterable[int], *, workspace: bool = True) -> list[Block]:
    """The blocks of a valid schedule, in the order in which they begin.

    Parameters
    ----------
    graph
        The step; its resident tensors have no block.
    steps
        Steps as `Schedule` holds them.
    workspace
        Whether the workspaces of ops have blocks too. Blocks of no bytes are left out.
    """
    arrays = graph.arrays
    size = arrays.size.tolist()
    taken = arrays.overwrites.tolist()
    begun: dict[int, tuple[int, list[tuple[int, int]]]] = {}  # live tensor -> first, makes
    found: list[Block] = []
    ran: set[int] = set()
    spare = arrays.spare.tolist()
    unmade: set[int] = set()  # what the last op does not make if it is freed now
    at = -1

    def end(tensor: int, last: int) -> None:
        first, makes = begun.pop(tensor)
        found.append(Block(size[tensor], first, last, tuple(makes)))

    listed = list(steps)
    for place, step in enumerate(listed):
        if step < 0:
            if -step - 1 in unmade:  # nobody reads it: it was not made
                del begun[-step - 1]
            elif -step - 1 in begun:  # or its block went on to the output that overwrote it
                end(-step - 1, at)
            continue
        at += 1
        op = graph.ops[step]
        extra = int((arrays.rerun_workspace if step in ran else arrays.workspace)[step])
        ran.add(step)
        if workspace and extra > 0:
            found.append(Block(extra, at, at))
        old = taken[step] if taken[step] >= 0 and _dies(listed, place, taken[step]) else -1
        unmade = {t for t in op.outputs if spare[t] and t not in begun}
        for which, t in enumerate(op.outputs):
            over = which == 0 and old >= 0
            if t in begun:  # a second copy, for this execution only
                if over:
                    begun[old][1].append((at, t))
                    end(old, at)
                else:
                    found.append(Block(size[t], at, at, ((at, t),)))
            elif over:
                first, makes = begun.pop(old)
                begun[t] = (first, [*makes, (at, t)])
            else:
                begun[t] = (at, [(at, t)])
    for t in list(begun):
        end(t, max(at, 0))
    return sorted(
        (block for block in found if block.size_bytes > 0),
        key=lambda block: (block.first, block.makes, block.last),
    )


def _dies(steps: list[int], place: int, tensor: int) -> bool:
    """Whether `tensor` is freed between the execution at `place` and the next one."""
    place += 1
    while place < len(steps) and steps[place] < 0:
        if -steps[place] - 1 == tensor:
            return True
        place += 1
    return False
