"""One block as a small graph of its own: forward ops, the border to the backward phase, gradients.

What comes in from blocks before is resident, for it is in memory while the block is worked on and
is counted by whoever keeps it. At the border stand the tensors of later blocks: the gradients that
come in are made there, and what the block hands on is read there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, Op, Tensor
from ..search.evaluate import arrays_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..array_types import Bools
    from ..search.evaluate import Arrays
    from .cut import Cuts


@dataclass(frozen=True, eq=False)
class Block:
    """A block and what it exchanges with its neighbours.

    Attributes
    ----------
    graph, arrays
        Forward ops, the border (op `border`), backward ops.
    border
        Number of forward ops.
    handed
        Per tensor of `graph`: made by the block and read by later ones in the forward phase.
    input_bytes, handed_bytes
        Forward tensors that cross the border before the block, and the one after it.
    gradient_bytes
        Gradients that cross the border after the block, on their way back.
    through_bytes
        The part of them that the block does not read.
    pinned_bytes
        Results of the block's backward ops that stay to the end of the step.
    """

    graph: Graph
    arrays: Arrays
    border: int
    handed: Bools
    input_bytes: int
    handed_bytes: int
    gradient_bytes: int
    through_bytes: int
    pinned_bytes: int


def block_of(graph: Graph, cuts: Cuts, blocks: Sequence[int], size: int) -> Block:
    """The block that starts at original block `blocks[0]` and spans `size` of them.

    `blocks` are the starts of all blocks alike; times are averaged over them.
    """
    first, last = blocks[0], blocks[0] + size - 1
    start, end = cuts.forward[first], cuts.forward[last + 1]
    low, high = cuts.backward[last + 1], cuts.backward[first]
    members = [*range(start, end), *range(low, high)]
    time = graph.arrays.time.astype(np.float64)
    mean = np.zeros(len(members))
    for other in blocks:
        forward = time[cuts.forward[other] : cuts.forward[other + size]]
        backward = time[cuts.backward[other + size] : cuts.backward[other]]
        mean += np.concatenate([forward, backward])
    mean /= len(blocks)

    tensors: list[Tensor] = []
    number: dict[int, int] = {}
    handed: list[bool] = []
    read_back: set[int] = {t for op in range(low, high) for t in graph.ops[op].inputs}
    through = _gradients(graph, cuts, low)
    incoming = [t for t in through if t in read_back]

    def local(tensor: int) -> int:
        """Number of a tensor in the block's graph."""
        if tensor in number:
            return number[tensor]
        it = graph.tensors[tensor]
        maker = int(cuts.made[tensor])
        forward = start <= maker < end
        stays = it.output or bool(cuts.kept[tensor])
        pinned = stays
        if not forward:
            pinned = it.output or bool(cuts.last_use[tensor] >= high)
        number[tensor] = len(tensors)
        # What is kept in any case is a constant of the whole step.
        size_bytes = 0 if (forward and stays) or maker < 0 else it.size_bytes
        tensors.append(Tensor(f"{tensor}", size_bytes, pinned and maker >= 0))
        handed.append(forward and not stays and bool(cuts.last_forward[tensor] >= end))
        return number[tensor]

    made = {t for op in members for t in graph.ops[op].outputs} | set(incoming)
    ops: list[Op] = []

    def overwritten(it: Op) -> int:
        """The input that an op may overwrite, if it dies inside the block."""
        if it.overwrites not in made or tensors[local(it.overwrites)].output:
            return -1
        return local(it.overwrites)

    def add(op: int, place: int) -> None:
        it = graph.ops[op]
        ops.append(
            Op(
                name=f"{op}",
                kind="",
                time_ns=round(mean[place]),
                inputs=tuple(local(t) for t in it.inputs if t in made),
                outputs=tuple(local(t) for t in it.outputs),
                workspace_bytes=it.workspace_bytes,
                rerun_workspace_bytes=it.rerun_workspace_bytes,
                recompute=it.recompute and op < end,
                phase="forward" if op < end else "backward",
                overwrites=overwritten(it),
            )
        )

    for op in range(start, end):
        add(op, op - start)
    leaving = tuple(i for i, leaves in enumerate(handed) if leaves)
    entering = tuple(local(t) for t in incoming)
    ops.append(
        Op("border", "lowtide.border", 0, leaving, entering, recompute=False, phase="backward")
    )
    for op in range(low, high):
        add(op, end - start + op - low)
    small = Graph(f"block-{first}", tuple(ops), tuple(tensors))
    size_of = graph.arrays.size
    pinned = sum(
        graph.tensors[t].size_bytes
        for op in range(low, high)
        for t in graph.ops[op].outputs
        if graph.tensors[t].output
    )
    return Block(
        graph=small,
        arrays=arrays_of(small),
        border=end - start,
        handed=np.array(handed, dtype=np.bool_),
        input_bytes=int(size_of[cuts.crossing(start)].sum()),
        handed_bytes=int(size_of[cuts.crossing(end)].sum()),
        gradient_bytes=int(size_of[through].sum()),
        through_bytes=int(size_of[[t for t in through if t not in read_back]].sum()),
        pinned_bytes=pinned,
    )


def _gradients(graph: Graph, cuts: Cuts, position: int) -> list[int]:
    """Tensors of the backward phase that are made before `position` and read there or later."""
    boundary = cuts.forward[-1]
    inside = (cuts.made >= boundary) & (cuts.made < position) & (cuts.last_use >= position)
    found: list[int] = np.flatnonzero(inside & (graph.arrays.output == 0)).tolist()
    return found
