"""Tree and path decompositions of a graph's ops, and the separator tree that Kumar et al. need.

Widths are those of the undirected graph of data dependencies. Heuristics for trees come from
networkx; small graphs are decomposed exactly by dynamic programming over elimination orders
(Bodlaender et al. 2012, "On exact algorithms for treewidth") and over layouts (Kinnersley 1992:
pathwidth is vertex separation).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import networkx as nx

from ..bits import members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..graph import Graph

Kind = Literal["tree", "path"]
EXACT_OPS = 12  # subsets of ops are enumerated up to here
FILL_OPS = 300  # minimum fill-in up to here, minimum degree above: it is quadratic


def dependencies(graph: Graph) -> list[int]:
    """Per op: the ops whose results it reads, as a bit set."""
    arrays = graph.arrays
    before = []
    for op in range(len(graph.ops)):
        bits = 0
        for t in arrays.inputs(op).tolist():
            bits |= 1 << int(arrays.producer[t])
        before.append(bits)
    return before


def decompose(graph: Graph, kind: Kind) -> nx.Graph:
    """A tree of bags (frozen sets of ops); a path of bags for `path`."""
    undirected = nx.Graph()
    undirected.add_nodes_from(range(len(graph.ops)))
    for op, before in enumerate(dependencies(graph)):
        undirected.add_edges_from((p, op) for p in members(before))
    small = len(graph.ops) <= EXACT_OPS
    if kind == "path":
        layouts = (
            [_best_layout(undirected)] if small else [range(len(graph.ops)), _narrow(undirected)]
        )
        paths = [_path(undirected, layout) for layout in layouts]
        return min(paths, key=width)
    if small:
        return _eliminated(undirected, _best_elimination(undirected))
    from networkx.algorithms import approximation

    if len(graph.ops) <= FILL_OPS:
        tree = approximation.treewidth_min_fill_in(undirected)[1]
    else:
        tree = approximation.treewidth_min_degree(undirected)[1]
    return tree


def width(tree: nx.Graph) -> int:
    """Size of the largest bag, less one."""
    return max((len(bag) for bag in tree.nodes), default=0) - 1


@dataclass(frozen=True)
class Separator:
    """A node of the separator tree: ops that split `inside` into parts with no edge between them.

    Attributes
    ----------
    ops, inside
        Bit sets: the separator, and all ops of this node and below.
    parts
        The separator trees of the parts.
    """

    ops: int
    inside: int
    parts: tuple[Separator, ...]

    @property
    def depth(self) -> int:
        """Levels."""
        return 1 + max((part.depth for part in self.parts), default=0)


def separators(tree: nx.Graph) -> tuple[Separator, ...]:
    """Separator trees, one a component: each splits at the bag that leaves no part above half."""
    bags = list(tree.nodes)
    number = {bag: i for i, bag in enumerate(bags)}
    around = [[number[other] for other in tree.adj[bag]] for bag in bags]
    content = [sum(1 << op for op in bag) for bag in bags]
    return tuple(
        _split([number[bag] for bag in component], content, around)
        for component in nx.connected_components(tree)
    )


def _split(nodes: Sequence[int], content: list[int], around: list[list[int]]) -> Separator:
    inside = 0
    for node in nodes:
        inside |= content[node]
    allowed = set(nodes)
    best, pieces = nodes[0], [list(nodes)]
    least = inside.bit_count() + 1
    node, came = nodes[0], -1
    while True:  # walk into the heaviest side while that lowers the heaviest
        sides = _sides(node, allowed, around)
        weights = [_without(side, content, content[node]).bit_count() for side in sides]
        heaviest = max(weights, default=0)
        if heaviest >= least:
            break
        best, pieces, least = node, sides, heaviest
        if not sides:
            break
        heavy = sides[weights.index(heaviest)]
        following = next(n for n in heavy if n in around[node])
        if following == came:
            break
        node, came = following, node
    cut = content[best]
    rest = list(content)
    for side in pieces:
        for n in side:
            rest[n] &= ~cut
    parts = [
        _split(component, rest, around)
        for side in pieces
        if best not in side
        for component in _filled(side, rest, around)
    ]
    return Separator(cut, inside, tuple(parts))


def _sides(node: int, allowed: set[int], around: list[list[int]]) -> list[list[int]]:
    sides = []
    for start in around[node]:
        if start in allowed:
            side, todo, seen = [], [start], {node, start}
            while todo:
                n = todo.pop()
                side.append(n)
                for other in around[n]:
                    if other in allowed and other not in seen:
                        seen.add(other)
                        todo.append(other)
            sides.append(side)
    return sides


def _without(nodes: Sequence[int], content: list[int], cut: int) -> int:
    bits = 0
    for n in nodes:
        bits |= content[n]
    return bits & ~cut


def _filled(side: list[int], rest: list[int], around: list[list[int]]) -> list[list[int]]:
    """Connected pieces of a side, bags that lost all their ops left out."""
    left = {n for n in side if rest[n]}
    pieces = []
    while left:
        todo = [left.pop()]
        piece = []
        while todo:
            n = todo.pop()
            piece.append(n)
            for other in around[n]:
                if other in left:
                    left.remove(other)
                    todo.append(other)
        pieces.append(piece)
    return pieces


def _path(graph: nx.Graph, layout: Sequence[int]) -> nx.Graph:
    """Bags of a linear layout: each op with the earlier ones that still have a later neighbour."""
    place = {op: i for i, op in enumerate(layout)}
    last = {op: max([place[op], *(place[n] for n in graph.adj[op])]) for op in layout}
    bags = []
    active: set[int] = set()
    for i, op in enumerate(layout):
        active = {a for a in active if last[a] >= i} | {op}
        bags.append(frozenset(active))
    path = nx.Graph()
    distinct = list(dict.fromkeys(bags))
    path.add_nodes_from(distinct)
    path.add_edges_from(pairwise(distinct))
    return path


def _narrow(graph: nx.Graph) -> list[int]:
    """A layout that takes, at each step, the op that leaves the fewest with a later neighbour."""
    left = set(graph.nodes)
    open_: set[int] = set()
    layout: list[int] = []
    missing = {op: len(graph.adj[op]) for op in graph.nodes}
    while left:
        near = {n for a in open_ for n in graph.adj[a] if n in left} or {min(left)}

        growth = {
            op: int(missing[op] > 0) - sum(missing[n] == 1 for n in graph.adj[op] if n in open_)
            for op in near
        }
        op = min(near, key=lambda op: (growth[op], op))
        layout.append(op)
        left.remove(op)
        open_.add(op)
        for n in graph.adj[op]:
            missing[n] -= 1
        open_ = {a for a in open_ if missing[a] > 0}
    return layout


def _best_layout(graph: nx.Graph) -> list[int]:
    """The layout of smallest vertex separation, over all subsets."""
    count = len(graph)
    near = [sum(1 << n for n in graph.adj[op]) for op in range(count)]
    best = {0: (-1, -1)}
    for subset in range(1, 1 << count):
        border = sum(1 for op in members(subset) if near[op] & ~subset)
        best[subset] = min(
            (max(best[subset & ~(1 << op)][0], border), op) for op in members(subset)
        )
    layout, subset = [], (1 << count) - 1
    while subset:
        op = best[subset][1]
        layout.append(op)
        subset &= ~(1 << op)
    return layout[::-1]


def _best_elimination(graph: nx.Graph) -> list[int]:
    """The elimination order of smallest width, over all subsets."""
    count = len(graph)
    near = [sum(1 << n for n in graph.adj[op]) for op in range(count)]

    def degree(op: int, gone: int) -> int:
        """Neighbours of `op` once `gone` is eliminated: ops reached through eliminated ones."""
        seen, todo, found = 1 << op, 1 << op, 0
        while todo:
            low = todo & -todo
            todo ^= low
            fresh = near[low.bit_length() - 1] & ~seen
            seen |= fresh
            found |= fresh & ~gone
            todo |= fresh & gone
        return found.bit_count()

    best = {0: (-1, -1)}
    for subset in range(1, 1 << count):
        best[subset] = min(
            (max(best[subset & ~(1 << op)][0], degree(op, subset & ~(1 << op))), op)
            for op in members(subset)
        )
    order, subset = [], (1 << count) - 1
    while subset:
        op = best[subset][1]
        order.append(op)
        subset &= ~(1 << op)
    return order[::-1]


def _eliminated(graph: nx.Graph, order: Sequence[int]) -> nx.Graph:
    """The tree decomposition of an elimination order."""
    work = graph.copy()
    bags: dict[int, frozenset[int]] = {}
    for op in order:
        around = list(work.adj[op])
        bags[op] = frozenset({op, *around})
        work.add_edges_from((a, b) for a in around for b in around if a < b)
        work.remove_node(op)
    tree = nx.Graph()
    tree.add_nodes_from(bags.values())
    place = {op: i for i, op in enumerate(order)}
    for op, bag in bags.items():
        later = [n for n in bag if n != op]
        if later:
            tree.add_edge(bag, bags[min(later, key=place.__getitem__)])
    return tree
