"""Decompositions, separators, and the bounds of Kumar et al. on families of known width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from hypothesis import given, settings

from lowtide.solver.baselines.decomposition import decompose, separators, width
from lowtide.solver.baselines.treewidth import executions
from lowtide.solver.bits import members
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..strategies import graphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.solver.baselines.decomposition import Kind, Separator


def dag(reads: Sequence[Sequence[int]]) -> Graph:
    """Op i makes tensor i of one byte and reads those of `reads[i]`."""
    ops = tuple(Op(f"op{i}", "", 1, tuple(read), (i,)) for i, read in enumerate(reads))
    return Graph("dag", ops, tuple(Tensor(f"t{i}", 1) for i in range(len(reads))))


def line(count: int) -> Graph:
    """A chain: both widths are 1."""
    return dag([[i - 1] if i else [] for i in range(count)])


def training_line(count: int) -> Graph:
    """Forward and backward of a chain, a ladder: both widths are 2."""
    forward = [[i - 1] if i else [] for i in range(count)]
    backward = [[count + i - 1, count - 1 - i] if i else [count - 1] for i in range(count)]
    return dag([*forward, *backward])


def grid(rows: int, columns: int) -> Graph:
    """A grid, along its columns: both widths are `rows` (rows <= columns)."""
    reads = []
    for c in range(columns):
        for r in range(rows):
            above = [c * rows + r - 1] if r else []
            left = [(c - 1) * rows + r] if c else []
            reads.append([*left, *above])
    return dag(reads)


def is_decomposition(graph: Graph, tree: nx.Graph) -> bool:
    """Every op and edge in a bag, and the bags of an op connected; a forest."""
    inside = {op: [bag for bag in tree.nodes if op in bag] for op in range(len(graph.ops))}
    edges = [
        (p, op)
        for op, one in enumerate(graph.ops)
        for p in one.inputs
        if p < op  # tensor p is what op p makes
    ]
    return (
        nx.is_forest(tree)
        and all(bags and nx.is_connected(tree.subgraph(bags)) for bags in inside.values())
        and all(any(b in bag for bag in inside[a]) for a, b in edges)
    )


@pytest.mark.parametrize("kind", ["tree", "path"])
@pytest.mark.parametrize(
    ("graph", "known"),
    [(line(9), 1), (training_line(5), 2), (grid(3, 4), 3), (line(60), 1), (training_line(40), 2)],
    ids=["line", "ladder", "grid", "long line", "long ladder"],
)
def test_widths_of_known_families(graph: Graph, known: int, kind: Kind) -> None:
    """Exact on small graphs, and the heuristics find it where it is easy."""
    tree = decompose(graph, kind)
    assert is_decomposition(graph, tree)
    found = width(tree)
    assert found == known or (kind == "path" and len(graph.ops) > 12 and found <= 2 * known)


@pytest.mark.parametrize("kind", ["tree", "path"])
def test_separators_halve(kind: Kind) -> None:
    """Parts are disjoint, have no edge between them, and half the ops each at the most."""
    graph = training_line(32)
    (top,) = separators(decompose(graph, kind))

    def visit(node: Separator) -> None:
        found = node.ops
        for part in node.parts:
            assert not found & part.inside
            found |= part.inside
            assert part.inside.bit_count() <= node.inside.bit_count() / 2 + 1
            visit(part)
        assert found == node.inside
        for op in members(node.inside & ~node.ops):
            part = next(p for p in node.parts if p.inside >> op & 1)
            for p in graph.ops[op].inputs:
                assert part.inside >> p & 1 or not (node.inside & ~node.ops) >> p & 1

    visit(top)
    assert top.depth <= 2 + math.log2(len(graph.ops))


@pytest.mark.parametrize("kind", ["tree", "path"])
@pytest.mark.parametrize("count", [16, 64, 128])
def test_live_set_and_executions_of_a_ladder(count: int, kind: Kind) -> None:
    """O(k log n) results in memory, n^O(log k) executions."""
    graph = training_line(count)
    n, k = len(graph.ops), 2
    computes = executions(graph, kind)
    assert computes is not None
    result = simulate(graph, Schedule.from_computes(graph, computes))
    assert result.peak_bytes <= 2 * (k + 1) * math.log2(n) + 4
    assert len(computes) <= n ** math.log2(k + 2)
    assert set(computes) == set(range(n))


@pytest.mark.parametrize("count", [32, 256])
def test_memory_of_a_ladder_grows_with_the_logarithm(count: int) -> None:
    """Eight times the layers need only a few more results."""
    live = []
    for layers in (count, 2 * count):
        graph = training_line(layers)
        computes = executions(graph, "tree")
        assert computes is not None
        live.append(simulate(graph, Schedule.from_computes(graph, computes)).peak_bytes)
    assert live[1] <= live[0] + 8


@settings(max_examples=40, deadline=None)
@given(graph=graphs(max_ops=8))
def test_schedules_of_random_graphs_run(graph: Graph) -> None:
    """Every op runs, after what it reads."""
    for kind in ("tree", "path"):
        computes = executions(graph, kind)
        if computes is not None:
            simulate(graph, Schedule.from_computes(graph, computes))
            assert set(computes) == set(range(len(graph.ops)))
