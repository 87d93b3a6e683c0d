"""Which ops must keep their order although no data flows between them.

A plan may run ops in any order that the graph allows, so whatever else fixes the order has to be in
the graph. An op that others must follow makes one more tensor, of no bytes and pinned like an
output (so it is never dropped, and no plan has anything to decide about it), which they read. What
is ordered in this way:

* draws of random numbers follow each other as in the captured step;
* draws and checks of the forward come before the boundary, those of the backward after it;
* a buffer or input that the step changes is written once all who read its old contents have run,
  and before the boundary;
* what the caller sees when forward returns, outputs and changed buffers, is there at the boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .program import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from .assemble import Item
    from .interface import InputSpec
    from .values import Values


def order_edges(
    items: Sequence[Item],
    values: Values,
    inputs: Sequence[InputSpec],
    results: Collection[int],
) -> dict[int, list[int]]:
    """For each item (by index) the earlier ones that it must follow, data flow aside.

    Their number is linear in the number of items, reads and writes. `results` are the storages that
    are there at the boundary.
    """
    after: dict[int, dict[int, None]] = {}
    for first, second in (
        *_draws(items),
        *_phases(items),
        *_updates(items, values, results),
        *_writes(items, values, inputs),
    ):
        after.setdefault(second, {})[first] = None
    return {second: list(firsts) for second, firsts in after.items()}


def _boundary(items: Sequence[Item]) -> int:
    return next(i for i, item in enumerate(items) if item.op.kind is Kind.BACKWARD)


def _draws(items: Sequence[Item]) -> Iterator[tuple[int, int]]:
    """The chain of the random ops, with the boundary as one of its links."""
    boundary = _boundary(items)
    last = -1
    saves: dict[int, int] = {}  # value of a saved state -> the op that saves it
    for index, item in enumerate(items):
        if item.op.kind is Kind.RNG_STATE:
            saves[item.op.writes[0]] = index
        if not item.op.random and index != boundary:
            continue
        state = item.op.rng_value
        # Nothing may draw between the saving of a state and the draw that it belongs to.
        if last >= 0:
            yield last, index if state is None else saves[state]
        last = index


def _phases(items: Sequence[Item]) -> Iterator[tuple[int, int]]:
    """Ops without results, which raise or write, on their side of the boundary."""
    boundary = _boundary(items)
    for index, item in enumerate(items):
        if not item.op.writes and index != boundary:
            yield min(index, boundary), max(index, boundary)


def _updates(
    items: Sequence[Item], values: Values, results: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Ops that update buffers beside what they make, if no result of the forward needs them."""
    of, boundary = values.storage, _boundary(items)
    maker = {of[v]: index for index, item in enumerate(items) for v in item.op.writes}
    needed: set[int] = set()
    stack = [maker[storage] for storage in results]
    while stack:
        index = stack.pop()
        if index not in needed:
            needed.add(index)
            stack += [maker[of[v]] for v in items[index].op.reads if of[v] in maker]
    for index, item in enumerate(items):
        if item.op.updates and item.op.writes and index not in needed:
            yield index, boundary


def _writes(
    items: Sequence[Item], values: Values, inputs: Sequence[InputSpec]
) -> Iterator[tuple[int, int]]:
    """Readers of old contents before the op that writes the new ones, and writers in turn.

    A batch norm that computes new statistics from old ones comes first by data flow. It may run
    again later: then nothing reads its statistics any more.
    """
    of = values.storage
    writers: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        for changed in item.op.changes:
            writers.setdefault(of[inputs[changed].value], []).append(index)
    for index, item in enumerate(items):
        for storage in dict.fromkeys(of[value] for value in item.op.reads):
            write = next((w for w in writers.get(storage, ()) if w > index), -1)
            if write >= 0 and not set(items[write].op.reads) & set(item.op.writes):
                yield index, write
