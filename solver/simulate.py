"""The one accounting of memory and time; everything that quotes a peak or a cost gets it here.

Rules: during an op its inputs, its outputs, its workspace and everything kept are live. An op that
runs again while one of its outputs is still live holds the old and the new copy during that run,
one of them afterwards. Resident bytes are a constant. An op that may overwrite an input does so
where that input is freed before the next op runs, if both are of the same size: its output then
takes the input's bytes. What only reruns read (saved generator states) need not be there for a
first run, and takes nothing if it is freed before the op after its own runs: it is not made then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from .errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph import Graph
    from .schedule import Schedule


@dataclass(frozen=True)
class Simulation:
    """What a schedule costs.

    Attributes
    ----------
    peak_bytes
        Largest sum of live bytes during any op, resident bytes included.
    time_ns
        Sum of the times of all executions.
    during_bytes
        For each execution, in order: live bytes during it, resident bytes included.
    after_bytes
        The same once the op's frees are done.
    ops
        The op of each execution.
    """

    peak_bytes: int
    time_ns: int
    during_bytes: tuple[int, ...]
    after_bytes: tuple[int, ...]
    ops: tuple[int, ...]

    @cached_property
    def peak_position(self) -> int:
        """Index of the execution that sets the peak; -1 for an empty schedule."""
        if not self.during_bytes:
            return -1
        return self.during_bytes.index(max(self.during_bytes))


def peak_on_existing(
    graph: Graph, schedule: Schedule | Sequence[int], leaving: Sequence[tuple[int, int]]
) -> int:
    """Peak of a schedule if gradients are there already, to which new ones are added.

    Parameters
    ----------
    graph, schedule
        A step that begins without gradients: they stay in memory once made.
    leaving
        Pairs (execution, tensor): the gradient is added, and its memory free, after that execution.
    """
    size = [tensor.size_bytes for tensor in graph.tensors]
    during = simulate(graph, schedule).during_bytes
    beside = [0] * (len(during) + 1)
    beside[0] = sum(size[t] for _, t in leaving)
    for execution, t in leaving:
        beside[min(execution + 1, len(during))] -= size[t]
    return max((a + b for a, b in zip(during, accumulate(beside), strict=False)), default=0)


def simulate(graph: Graph, schedule: Schedule | Sequence[int]) -> Simulation:
    """Run `schedule` on paper.

    Raises
    ------
    CheckError
        At the first step that reads a tensor which is not in memory or frees one that is not.
    """
    ops = graph.ops
    arrays = graph.arrays
    size = arrays.size.tolist()
    resident = arrays.producer < 0
    present: list[bool] = resident.tolist()
    live = graph.resident_bytes
    ran = [False] * len(ops)
    rerun = arrays.rerun_workspace.tolist()
    overwrites = arrays.overwrites.tolist()
    restores, producer = arrays.restores.tolist(), arrays.producer.tolist()
    spare = arrays.spare.tolist()
    during: list[int] = []
    after: list[int] = []
    order: list[int] = []
    time = 0
    doomed = -1  # input that the last op overwrites if it is freed now
    unmade: tuple[int, ...] = ()  # what the last op does not make if it is freed now
    for position, step in enumerate(schedule):
        if step < 0:
            t = -step - 1
            if t >= len(size) or not present[t] or resident[t]:
                raise CheckError(f"step {position} frees tensor {t}, which is not in memory")
            present[t] = False
            live -= size[t]
            after[-1] = live
            if t == doomed or t in unmade:
                during[-1] -= size[t]
            continue
        if step >= len(ops):
            raise CheckError(f"step {position} computes op {step}; the graph has {len(ops)}")
        op = ops[step]
        for t in op.inputs:
            if not present[t] and (ran[step] or t != restores[step] or not ran[producer[t]]):
                raise CheckError(
                    f"step {position} computes {op.name}, whose input {graph.tensors[t].name} "
                    "is not in memory"
                )
        made = sum(size[t] for t in op.outputs)
        doomed = overwrites[step]
        unmade = tuple(t for t in op.outputs if spare[t] and not present[t])
        workspace = rerun[step] if ran[step] else op.workspace_bytes
        during.append(live + made + workspace)
        for t in op.outputs:
            if not present[t]:
                present[t] = True
                live += size[t]
        ran[step] = True
        time += op.time_ns
        after.append(live)
        order.append(step)
    peak = max(during, default=live)
    return Simulation(peak, time, tuple(during), tuple(after), tuple(order))
