"""How many gradients the engine adds up for each tensor that a step is differentiated by.

It adds them one by one, in the order in which they arrive; the joint graph shows the sums, but not
where one tensor's end: a tensor that is only added to something passes its own sum on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def count_contributions(
    results: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> list[int]:
    """Count what arrives for each of `sources` in the next backward.

    Parameters
    ----------
    results
        Tensors with a history, from which backward will start.
    sources
        Tensors that they were computed from.

    Returns
    -------
    list of int
        One number for each source, 0 before that backward.
    """
    counts = [0] * len(sources)
    place: dict[tuple[Any, int], int] = {}
    leaves: dict[int, int] = {}
    for index, source in enumerate(sources):
        if source.grad_fn is not None:
            place.setdefault((source.grad_fn, source.output_nr), index)
        elif source.requires_grad:
            leaves.setdefault(id(source), index)

    def target(edge: tuple[Any, int]) -> int:
        node = edge[0]
        if node is None:
            return -1
        variable = getattr(node, "variable", None)
        return place.get(edge, -1) if variable is None else leaves.get(id(variable), -1)

    def follow(node: Any) -> None:
        ends = [(nr, target(edge)) for nr, edge in enumerate(node.next_functions)]
        ends = [(nr, index) for nr, index in ends if index >= 0]

        def arrived(given: tuple[Any, ...], _: Any) -> None:
            for nr, index in ends:
                counts[index] += given[nr] is not None

        if ends:
            node.register_hook(arrived)

    pending = deque(result.grad_fn for result in results if result.grad_fn is not None)
    seen = set(pending)
    while pending:
        node = pending.popleft()
        follow(node)
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                pending.append(before)
    return counts
