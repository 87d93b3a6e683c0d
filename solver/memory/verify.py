"""An independent checker of addresses: it runs the plan's words on a picture of the buffer."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from ..errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..graph import Graph
    from ..plan import Plan


WORKSPACE = -1  # stands for a tensor


def check_addresses(
    graph: Graph,
    plan: Plan,
    offsets: Mapping[tuple[int, int], int],
    arena_bytes: int,
    alignment: int,
) -> None:
    """Raise unless no two tensors that are in memory at the same time share a byte.

    Parameters
    ----------
    graph, plan
        The step and its plan.
    offsets
        (Execution, tensor made there, or -1 for a workspace) -> offset. Workspaces may be left out.
    arena_bytes, alignment
        Length of the buffer, and what every offset must be a multiple of.

    Raises
    ------
    CheckError
        At the first tensor without a place, outside the buffer, or on top of another one.
    """
    held: list[tuple[int, int, int]] = []  # (offset, end, tensor), no two of them overlapping
    where: dict[int, tuple[int, int, int]] = {}
    words = [word.split(" ") for word in plan.steps]
    ran: set[int] = set()
    otherwise = {t for op in graph.ops for t in op.inputs if t != op.restores}
    otherwise |= {t for t, tensor in enumerate(graph.tensors) if tensor.output}
    otherwise |= {t for op in graph.ops if op.overwrites >= 0 for t in op.outputs}
    only_again = {op.restores for op in graph.ops} - otherwise
    execution = -1
    for position, (verb, number) in enumerate(words):
        index = int(number)
        if verb == "free":
            span = where.pop(index, None)
            if span is not None:
                del held[bisect_left(held, span)]
            continue
        execution += 1
        op = graph.ops[index]
        dying: set[int] = set()
        after = position + 1
        while after < len(words) and words[after][0] == "free":
            dying.add(int(words[after][1]))
            after += 1
        old = where.get(op.overwrites) if op.overwrites in dying else None
        passing: list[tuple[int, int, int]] = []
        workspace = op.workspace_bytes
        if index in ran and op.rerun_workspace_bytes >= 0:
            workspace = op.rerun_workspace_bytes
        ran.add(index)
        unmade = dying & only_again
        made = [
            (place, t, graph.tensors[t].size_bytes)
            for place, t in enumerate(op.outputs)
            if t not in unmade
        ]
        if (execution, WORKSPACE) in offsets:
            made.append((-1, WORKSPACE, workspace))
        for place, t, size in made:
            if size == 0:
                continue
            start = offsets.get((execution, t), -1)
            name = f"{_name(graph, t)}, made by execution {execution} ({op.name}),"
            if start < 0 or start % alignment or start + size > arena_bytes:
                raise CheckError(f"{name} has no place in the buffer of {arena_bytes} B")
            span = (start, start + size, t)
            if place == 0 and old is not None and old[:2] == span[:2]:
                del held[bisect_left(held, old)]
                del where[op.overwrites]
            at = bisect_left(held, span)
            for other in held[max(0, at - 1) : at + 1]:
                if other[0] < span[1] and span[0] < other[1]:
                    raise CheckError(
                        f"{name} lies on {_name(graph, other[2])}: bytes {span[0]} to "
                        f"{span[1]} and {other[0]} to {other[1]}"
                    )
            insort(held, span)
            if t in where or t == WORKSPACE:
                passing.append(span)  # gone after this execution, as is a second copy
            else:
                where[t] = span
        for span in passing:
            del held[bisect_left(held, span)]


def _name(graph: Graph, tensor: int) -> str:
    return "a workspace" if tensor == WORKSPACE else graph.tensors[tensor].name
