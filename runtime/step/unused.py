"""Hooks of leaves behind an unused output, which plain PyTorch never reaches.

A replayed step is one node, or a few, with an edge to each leaf: a gradient that it does not have
goes there as None, and hooks would be called with that. They are passed over until backward ends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_engine: Any = torch.autograd.Variable._execution_engine


class _IfThere:
    """A hook that is called only if there is a gradient.

    Hooks on accumulation get the leaf instead, whether something was added to its gradient or not.
    """

    __slots__ = ("arrived", "hook")

    def __init__(self, hook: Callable[[torch.Tensor], Any], arrived: list[bool]) -> None:
        self.hook, self.arrived = hook, arrived

    def __call__(self, tensor: torch.Tensor | None) -> Any:
        return self.hook(tensor) if tensor is not None and self.arrived[0] else None


def pass_over(edges: Sequence[tuple[Any, int]], gradients: Sequence[Any]) -> None:
    """Have hooks of leaves that get no gradient passed over, also of those further up.

    Parameters
    ----------
    edges
        `next_functions` of the node in whose backward it is called, and until the end of which it
        lasts: a gradient that comes from elsewhere arrives.
    gradients
        What goes along the last of these.
    """
    changed = []
    behind = edges[len(edges) - len(gradients) :]
    for leaf in _leaves(e[0] for e, g in zip(behind, gradients, strict=True) if g is None):
        tables = [table for table in _tables(leaf) if table]
        if not tables or any(isinstance(hook, _IfThere) for hook in tables[0].values()):
            continue
        arrived = [True]
        for table in tables:
            for key, hook in table.items():
                table[key] = _IfThere(hook, arrived)
        changed.append((tables, leaf.register_hook(partial(_note, arrived))))
    if changed:
        _engine.queue_callback(partial(_put_back, changed))


def _leaves(nodes: Iterable[Any]) -> Iterator[Any]:
    """Leaves that the engine visits from these nodes on."""
    pending, seen = [*nodes], set[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is None:
            pending += (following for following, _ in node.next_functions)
        else:
            yield leaf


def _tables(leaf: torch.Tensor) -> tuple[dict[int, Any] | None, ...]:
    """Its hooks: of gradients, and on accumulation."""
    return leaf._backward_hooks, getattr(leaf, "_post_accumulate_grad_hooks", None)


def _note(arrived: list[bool], gradient: torch.Tensor | None) -> None:
    """A hook: those of gradients run before those on accumulation."""
    arrived[0] = gradient is not None


def _put_back(changed: Iterable[tuple[list[dict[int, Any]], Any]]) -> None:
    for tables, handle in changed:
        handle.remove()
        for table in tables:
            for key, hook in table.items():
                if isinstance(hook, _IfThere):
                    table[key] = hook.hook
