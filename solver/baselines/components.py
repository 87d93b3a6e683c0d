"""Evicted neighbourhoods of DTR's heuristics: exact, by union-find, and none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from ..array_types import Floats, Ints
    from ..graph import Graph


class Neighbourhood(Protocol):
    """Which tensors are evicted, and what it would cost to have the ones around a tensor back."""

    def __init__(self, graph: Graph, cost: Floats) -> None: ...

    def evicted(self, tensor: int) -> None:
        """Note that a tensor left memory."""

    def remade(self, tensor: int) -> None:
        """Note that a tensor is in memory (again)."""

    def costs(self, tensors: Ints) -> Floats:
        """Per tensor: the cost of its evicted neighbourhood."""


class Nothing:
    """No neighbourhood."""

    def __init__(self, graph: Graph, cost: Floats) -> None:
        pass

    def evicted(self, tensor: int) -> None:
        """See `Neighbourhood`."""

    def remade(self, tensor: int) -> None:
        """See `Neighbourhood`."""

    def costs(self, tensors: Ints) -> Floats:
        """See `Neighbourhood`."""
        return np.zeros(len(tensors))


def neighbours(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Per tensor: the tensors that its op reads, and those that ops which read it make."""
    arrays = graph.arrays
    before: list[list[int]] = [[] for _ in graph.tensors]
    after: list[list[int]] = [[] for _ in graph.tensors]
    for op in range(len(graph.ops)):
        read, made = arrays.inputs(op).tolist(), arrays.outputs(op).tolist()
        for t in made:
            before[t].extend(read)
        for t in read:
            after[t].extend(made)
    return before, after


class Exact:
    """e*(t): evicted tensors that t needs or that need t, reached through evicted ones only."""

    def __init__(self, graph: Graph, cost: Floats) -> None:
        self._cost = cost.tolist()
        self._around = neighbours(graph)
        self._gone: set[int] = set()
        self._known: dict[int, float] = {}

    def evicted(self, tensor: int) -> None:
        """See `Neighbourhood`."""
        self._gone.add(tensor)
        self._forget(tensor)

    def remade(self, tensor: int) -> None:
        """See `Neighbourhood`."""
        self._forget(tensor)
        self._gone.discard(tensor)

    def costs(self, tensors: Ints) -> Floats:
        """See `Neighbourhood`."""
        return np.array([self._of(t) for t in tensors.tolist()], dtype=np.float64)

    def _of(self, tensor: int) -> float:
        if tensor not in self._known:
            found = self._reach(tensor, self._around[0]) | self._reach(tensor, self._around[1])
            self._known[tensor] = sum(self._cost[t] for t in found)
        return self._known[tensor]

    def _reach(self, tensor: int, edges: list[list[int]]) -> set[int]:
        found: set[int] = set()
        todo = list(edges[tensor])
        while todo:
            t = todo.pop()
            if t in self._gone and t not in found:
                found.add(t)
                todo.extend(edges[t])
        return found

    def _forget(self, tensor: int) -> None:
        """Drop the cached costs that a change of `tensor` touches: all that reach it."""
        self._known.pop(tensor, None)
        for edges in self._around:
            for t in self._reach(tensor, edges):
                self._known.pop(t, None)
                for inner in self._around:
                    for u in inner[t]:
                        self._known.pop(u, None)
            for t in edges[tensor]:
                self._known.pop(t, None)


class Components:
    """e~(t): components of evicted tensors in a union-find; leaving one only lowers its cost."""

    def __init__(self, graph: Graph, cost: Floats) -> None:
        self._cost = cost
        before, after = neighbours(graph)
        self._around = [[*a, *b] for a, b in zip(before, after, strict=True)]
        self._parent: list[int] = []
        self._sum: list[float] = []
        self._component: dict[int, int] = {}

    def evicted(self, tensor: int) -> None:
        """See `Neighbourhood`."""
        if tensor in self._component:
            return
        node = len(self._parent)
        self._parent.append(node)
        self._sum.append(float(self._cost[tensor]))
        self._component[tensor] = node
        for t in self._around[tensor]:
            if t in self._component:
                self._join(self._find(self._component[t]), self._find(node))

    def remade(self, tensor: int) -> None:
        """See `Neighbourhood`."""
        node = self._component.pop(tensor, None)
        if node is not None:
            self._sum[self._find(node)] -= float(self._cost[tensor])

    def costs(self, tensors: Ints) -> Floats:
        """See `Neighbourhood`."""
        return np.array([self._of(t) for t in tensors.tolist()], dtype=np.float64)

    def _of(self, tensor: int) -> float:
        roots = {
            self._find(self._component[t]) for t in self._around[tensor] if t in self._component
        }
        return sum(self._sum[root] for root in roots)

    def _find(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def _join(self, a: int, b: int) -> None:
        if a != b:
            self._parent[b] = a
            self._sum[a] += self._sum[b]
