"""What users of `torch.utils.checkpoint` write by hand: one checkpoint around each repeated module.

Blocks are found from the module paths of forward ops: the children of the outermost container that
has at least two numbered children (`transformer.h.0`, `transformer.h.1`; `layer1.0` and `layer2.3`
in a ResNet). What a block makes and only the block reads in the forward phase is recomputed when
the backward phase reaches it; the inputs of blocks and everything outside of them are kept.

With a budget the variants in use are tried and the cheapest that fits wins: every block by itself,
groups of g blocks (Megatron-LM's `uniform` method, Korthikanti et al. 2023), only the first m
blocks (its `block` method), and every n-th block (TorchTitan's selective option).

Deviation: of a block only what the backward phase asks for is computed again, so this is never
slower than `torch.utils.checkpoint`, which reruns the block up to the last tensor that was saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..realise import Tables, saved_array
from .base import Candidate, NotApplicableError, choose, evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule


def per_block(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Best checkpointing of repeated modules within the budget, else the smallest peak.

    Parameters
    ----------
    graph
        A training step whose forward ops have module paths.
    budget_bytes
        Upper bound on the peak, resident bytes included; None asks for the smallest peak.
    control
        Ends the search early, with the best so far.

    Raises
    ------
    NotApplicableError
        If there is no backward phase, or no repeated module.
    """
    tables = Tables.of(graph)
    if tables.boundary == len(graph.ops):
        raise NotApplicableError(f"per_block needs a backward phase; graph {graph.name!r} has none")
    block_of = blocks([op.module for op in graph.ops[: tables.boundary]])
    if not any(block_of):
        raise NotApplicableError(
            f"per_block needs repeated modules (paths like `layers.0`, `layers.1`) in the forward "
            f"phase of graph {graph.name!r}"
        )
    return choose(_variants(graph, tables, block_of), budget_bytes, control)


def blocks(modules: Sequence[str]) -> list[str]:
    """Block of each op, from its module path; "" for ops outside of repeated modules.

    Parameters
    ----------
    modules
        Module path of each op, components joined by dots.
    """
    children: dict[str, set[str]] = {}
    for path in set(modules):
        parts = path.split(".") if path else []
        for depth, part in enumerate(parts):
            if part.isdecimal():
                children.setdefault(".".join(parts[:depth]), set()).add(part)
    repeated = {container for container, numbers in children.items() if len(numbers) >= 2}

    def block(path: str) -> str:
        parts = path.split(".") if path else []
        for depth, part in enumerate(parts):
            if part.isdecimal() and ".".join(parts[:depth]) in repeated:
                return ".".join(parts[: depth + 1])
        return ""

    return [block(path) for path in modules]


def checkpoint_groups(
    graph: Graph, tables: Tables, block_of: Sequence[str], group_of: dict[str, int]
) -> Candidate:
    """Recompute what is private to a group of blocks; blocks without group are kept whole."""
    count = len(graph.ops)
    group = np.full(count + 1, -2, dtype=np.int64)  # one more: residents have op -1
    group[: tables.boundary] = [group_of.get(block, -1) for block in block_of]
    made_in = group[tables.arrays.producer]
    saved = made_in == -1
    owner = np.repeat(np.arange(len(saved)), np.diff(tables.use_ptr))
    forward = tables.use_idx < tables.boundary
    elsewhere = forward & (group[tables.use_idx] != made_in[owner])
    saved[owner[elsewhere]] = True
    return evaluate(graph, tables, saved_array(tables, saved))


def _variants(graph: Graph, tables: Tables, block_of: Sequence[str]) -> Iterator[Candidate]:
    """All blocks, groups of them, the first m, every n-th."""
    names = [name for name in dict.fromkeys(block_of) if name]  # in order of first execution
    count = len(names)
    chosen: dict[tuple[int, ...], None] = {(-1,) * count: None}
    sizes = sorted({*range(1, min(count, 8) + 1), *(count // n for n in range(1, 9)), 1} - {0})
    for size in sizes:
        chosen[tuple(i // size for i in range(count))] = None
    for first in sorted({round(count * step / 16) for step in range(1, 17)}):
        chosen[tuple(i if i < first else -1 for i in range(count))] = None
    for every in range(2, min(count, 8) + 1):
        chosen[tuple(i if i % every == 0 else -1 for i in range(count))] = None
    for groups in chosen:
        yield checkpoint_groups(graph, tables, block_of, dict(zip(names, groups, strict=True)))
