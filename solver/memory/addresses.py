"""Static addresses for a schedule: one offset per block, the buffer they need, what is proven."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..check import check_schedule
from ..control import Control
from ..errors import InputError
from .blocks import blocks_of
from .exact import pack_exactly
from .pack import live_bytes, orders, padded, place
from .verify import WORKSPACE, check_addresses

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from ..graph import Graph
    from ..plan import Plan
    from .blocks import Block

CPU_ALIGNMENT, CUDA_ALIGNMENT = 64, 512
MOST_ALIGNMENT = 1 << 30


@dataclass(frozen=True)
class AddressPlan:
    """Where everything that a schedule allocates lies in one buffer.

    Attributes
    ----------
    blocks, offsets
        What needs memory, and the byte at which each of them starts.
    arena_bytes
        Length of the buffer.
    lower_bound_bytes
        No placement needs less: the peak of live bytes, padding included, or what was proven.
    live_bytes
        The peak of live bytes without padding; resident bytes do not count.
    alignment
        Every offset is a multiple of it.
    rule
        What found the placement.
    """

    blocks: tuple[Block, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound_bytes: int
    live_bytes: int
    alignment: int
    rule: str

    @property
    def proven(self) -> bool:
        """Whether no placement is shorter."""
        return self.arena_bytes <= self.lower_bound_bytes

    @property
    def fragmentation(self) -> float:
        """Share of the buffer that is in no use when most of it is: 0 is none."""
        return 1.0 - self.live_bytes / self.arena_bytes if self.arena_bytes else 0.0

    @cached_property
    def of(self) -> dict[tuple[int, int], int]:
        """(Execution, tensor made there, or -1 for its workspace) -> offset."""
        return {
            make: offset
            for block, offset in zip(self.blocks, self.offsets, strict=True)
            for make in block.makes or ((block.first, WORKSPACE),)
        }

    def document(self) -> dict[str, Any]:
        """All of it, for a file."""
        return {
            "arena_bytes": self.arena_bytes,
            "lower_bound_bytes": self.lower_bound_bytes,
            "live_bytes": self.live_bytes,
            "alignment_bytes": self.alignment,
            "rule": self.rule,
            "proven": self.proven,
            "blocks": [
                {
                    "offset_bytes": offset,
                    "size_bytes": block.size_bytes,
                    "first": block.first,
                    "last": block.last,
                    "makes": [list(make) for make in block.makes],
                }
                for block, offset in zip(self.blocks, self.offsets, strict=True)
            ],
        }


def addresses(
    graph: Graph,
    plan: Plan,
    exact: bool = False,
    *,
    alignment: int | None = None,
    workspace: bool = True,
    time_limit: float = 20.0,
    seed: int = 0,
    threads: int = 1,
    interrupt: threading.Event | None = None,
) -> AddressPlan:
    """Put all that `plan` allocates into one buffer.

    Parameters
    ----------
    graph, plan
        The step and a plan for it.
    exact
        Try to prove that no shorter buffer will do, or find one, by constraint programming.
    alignment
        Bytes that offsets are multiples of; None: 512 for a graph captured on CUDA, else 64 (1 for
        an abstract instance).
    workspace
        Whether the workspaces of ops lie in the buffer as well.
    time_limit, seed, threads
        For `exact`.
    interrupt
        Ends `exact` with the best so far once it is set, as Ctrl-C does, which sets it.

    Raises
    ------
    CheckError
        If the plan is for another graph or cannot run.
    InputError
        If the alignment is not positive, or above 1 GiB.
    """
    check_schedule(graph, plan)
    if alignment is None:
        on_cuda = graph.meta.get("device", "").startswith("cuda")
        alignment = CUDA_ALIGNMENT if on_cuda else CPU_ALIGNMENT
        alignment = alignment if graph.size_unit == "bytes" else 1
    if not 1 <= alignment <= MOST_ALIGNMENT:
        raise InputError(
            f"the alignment is {alignment} bytes: it must be from 1 to {MOST_ALIGNMENT}"
        )
    blocks = blocks_of(graph, plan.schedule, workspace=workspace)
    found = pack(blocks, alignment)
    if exact and not found.proven:
        control = Control(time_limit, interrupt=interrupt)
        with control.catching_interrupts():
            better, bound = pack_exactly(
                blocks,
                alignment,
                found.offsets,
                lower_bound=found.lower_bound_bytes,
                control=control,
                seed=seed,
                threads=threads,
            )
        found = _plan(blocks, better, alignment, bound, "constraint programming")
    check_addresses(graph, plan, found.of, found.arena_bytes, alignment)
    return found


def pack(blocks: Sequence[Block], alignment: int) -> AddressPlan:
    """The shortest buffer that one of the rules of thumb finds."""
    bound = live_bytes(blocks, alignment)
    best: AddressPlan | None = None
    for rule, order in orders(blocks).items():
        found = _plan(blocks, place(blocks, order, alignment), alignment, bound, rule)
        if best is None or found.arena_bytes < best.arena_bytes:
            best = found
        if best.proven:
            break
    assert best is not None
    return best


def _plan(
    blocks: Sequence[Block], offsets: Sequence[int], alignment: int, bound: int, rule: str
) -> AddressPlan:
    ends = (o + padded(block, alignment) for block, o in zip(blocks, offsets, strict=True))
    return AddressPlan(
        tuple(blocks),
        tuple(offsets),
        max(ends, default=0),
        bound,
        live_bytes(blocks, 1),
        alignment,
        rule,
    )
