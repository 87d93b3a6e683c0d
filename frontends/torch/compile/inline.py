"""Which nodes of a joint graph are tensors in memory, and which are computed inside their readers.

A *root* is a node whose result a compiled program keeps in memory: results of libraries and
reductions, and elementwise nodes that a library reads, that the graph returns, or that would cost
more memory if their readers read the roots behind them instead. All other nodes are *inlined*: each
reader computes them again inside its own kernel, for no memory at all. So ReLU's mask, GELU's error
function or a normalised activation are never saved as long as what they are made of is.

The rule is a model of what inductor does, which inlines elementwise nodes up to limits of its own.
Where a schedule is written out each reader gets its own copies, so that inductor sees it that way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from .roles import Role, role_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

MOST_READS = 4  # of an expression with several readers: inductor's own limit
MOST_READS_ONCE = 8  # of one with a single reader
MOST_NODES = 32  # in one expression


@dataclass(frozen=True)
class Expressions:
    """Roots of a joint graph and what each of its nodes is computed from.

    Attributes
    ----------
    roles
        Of each node but the output.
    roots
        Nodes whose results are in memory, in graph order; one with several results counts once.
    leaves
        Per node that is not a root: the inputs, and the roots or parts of roots, that its value is
        computed from, in order of first use. A root, its parts and an input stand for themselves.
    inlined
        Per node: how many elementwise nodes its expression has.
    """

    roles: dict[fx.Node, Role]
    roots: tuple[fx.Node, ...]
    leaves: dict[fx.Node, tuple[fx.Node, ...]]
    inlined: dict[fx.Node, int]

    def arguments(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """Leaves of all arguments of a node."""
        return unique(leaf for item in node.all_input_nodes for leaf in self.leaves[item])

    def closure(self, node: fx.Node) -> list[fx.Node]:
        """Nodes computed inside `node`, in an order in which they can run; `node` itself is last.

        For a node that is inlined, too: an expression that ends in a view, for example.
        """
        seen = {node}
        stack = [node]
        while stack:
            for source in stack.pop().all_input_nodes:
                if source not in seen and self.leaves[source] != (source,):
                    seen.add(source)
                    stack.append(source)
        return sorted(seen, key=self.place.__getitem__)

    @cached_property
    def place(self) -> dict[fx.Node, int]:
        """Of each node: its place in the graph."""
        return {node: place for place, node in enumerate(self.roles)}


def expressions(graph: fx.Graph, returned: Iterable[fx.Node]) -> Expressions:
    """Decide what is in memory.

    Parameters
    ----------
    graph
        A functional joint graph.
    returned
        Nodes that the graph returns.

    Raises
    ------
    CaptureError
        If a node cannot be planned.
    """
    nodes = [node for node in graph.nodes if node.op != "output"]
    roles = {node: role_of(node) for node in nodes}
    demanded = _demanded(nodes, roles, returned)
    readers = _readers(nodes, roles)
    leaves: dict[fx.Node, tuple[fx.Node, ...]] = {}
    inlined: dict[fx.Node, int] = {}
    roots = []
    found = Expressions(roles, (), leaves, inlined)
    for node in nodes:
        role = roles[node]
        size = sum(inlined[item] for item in node.all_input_nodes)
        inlined[node] = 0
        if role in (Role.INPUT, Role.PART):
            leaves[node] = (node,)
        elif role is Role.FREE:
            leaves[node] = found.arguments(node)
            inlined[node] = size
        elif role is Role.POINTWISE and node not in demanded:
            behind = found.arguments(node)
            held = [leaf for leaf in behind if roles[leaf] is not Role.INPUT]
            if readers[node] <= 1:
                fits = len(behind) <= MOST_READS_ONCE
            else:
                fits = len(behind) <= MOST_READS and sum(map(nbytes, held)) <= nbytes(node)
            if fits and size < MOST_NODES:
                leaves[node] = behind
                inlined[node] = size + 1
            else:
                leaves[node] = (node,)
                roots.append(node)
        else:
            leaves[node] = (node,)
            roots.append(node)
    return Expressions(roles, tuple(roots), leaves, inlined)


def _demanded(
    nodes: list[fx.Node], roles: dict[fx.Node, Role], returned: Iterable[fx.Node]
) -> set[fx.Node]:
    """Nodes that must be in memory: what libraries read and what the graph returns."""
    demanded = set(returned)
    for node in nodes:
        if roles[node] in (Role.LIBRARY, Role.EFFECT):
            demanded.update(node.all_input_nodes)
    for node in reversed(nodes):
        if node in demanded and roles[node] is Role.FREE:
            demanded.update(node.all_input_nodes)
    return demanded


def _readers(nodes: list[fx.Node], roles: dict[fx.Node, Role]) -> dict[fx.Node, int]:
    """How many nodes that compute something read each node, directly or through views."""
    behind: dict[fx.Node, set[fx.Node]] = {}
    for node in reversed(nodes):
        mine: set[fx.Node] = set()
        for user in node.users:
            if user.op == "output":
                continue
            if roles[user] is Role.FREE:
                mine |= behind[user]
            else:
                mine.add(user)
        behind[node] = mine
    return {node: len(mine) for node, mine in behind.items()}


def nbytes(node: fx.Node) -> int:
    """Bytes of the memory behind a node's value; 0 for several values or none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    return int(value.untyped_storage().nbytes()) if value.layout is torch.strided else 0


def shown_bytes(node: fx.Node) -> int:
    """Bytes of the distinct elements that a node's value shows."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    sizes = [n for n, step in zip(value.shape, value.stride(), strict=True) if step or n == 0]
    return int(math.prod(sizes)) * value.dtype.itemsize


def unique(items: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """Distinct items in order of first appearance."""
    return tuple(dict.fromkeys(items))
