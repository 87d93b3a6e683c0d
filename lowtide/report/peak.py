"""Who is in memory at the moment of the peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..solver.simulate import simulate

if TYPE_CHECKING:
    from ..solver.graph import Graph, Op
    from ..solver.plan import Plan


@dataclass(frozen=True)
class LiveTensor:
    """One tensor in memory at the peak.

    Attributes
    ----------
    index, size_bytes
        Which tensor, and its bytes.
    role
        `input` or `output` of the op that runs, else `kept`.
    maker
        The op that produced it.
    """

    index: int
    size_bytes: int
    role: str
    maker: Op


@dataclass(frozen=True)
class Peak:
    """The execution that sets the peak; the parts add up to `total_bytes`.

    Attributes
    ----------
    position, op
        Which execution, and what it runs.
    again
        True if the op ran before.
    live
        Tensors in memory, largest first.
    resident_bytes
        Bytes always in memory.
    extra_bytes
        The op's own workspace, and second copies of outputs that were still there.
    total_bytes
        The peak.
    """

    position: int
    op: Op
    again: bool
    live: tuple[LiveTensor, ...]
    resident_bytes: int
    extra_bytes: int
    total_bytes: int


def find_peak(graph: Graph, plan: Plan) -> Peak | None:
    """What is in memory when `plan` needs most; None for a plan without ops."""
    run = simulate(graph, plan.schedule)
    if run.peak_position < 0:
        return None
    present: set[int] = set()
    at = -1
    for step in plan.schedule:
        if step < 0:
            present.discard(-step - 1)
            continue
        at += 1
        present.update(graph.ops[step].outputs)
        if at == run.peak_position:
            break
    number = run.ops[run.peak_position]
    op = graph.ops[number]
    producer = graph.arrays.producer
    live = [
        LiveTensor(
            t,
            graph.tensors[t].size_bytes,
            "input" if t in op.inputs else "output" if t in op.outputs else "kept",
            graph.ops[int(producer[t])],
        )
        for t in present
    ]
    live.sort(key=lambda entry: (-entry.size_bytes, entry.index))
    total = run.peak_bytes
    named = graph.resident_bytes + sum(entry.size_bytes for entry in live)
    again = number in run.ops[: run.peak_position]
    return Peak(
        run.peak_position, op, again, tuple(live), graph.resident_bytes, total - named, total
    )
