"""A chain whose backward phase needs every forward result, and its slowest, smallest schedule."""

from __future__ import annotations

from lowtide.solver.graph import Graph, Op, Tensor


def mirrored_chain(length: int) -> Graph:
    """`length` forward ops in a row, then as many backward ones that read them in reverse."""
    ops = [Op(f"f{i}", "f", 1, (i - 1,) if i else (), (i,), phase="forward") for i in range(length)]
    for i in range(length):
        read = tuple(sorted({length + i - 1, length - 1 - i}))
        ops.append(Op(f"b{i}", "b", 1, read, (length + i,), phase="backward"))
    return Graph("mirrored", tuple(ops), tuple(Tensor(f"t{i}", 10) for i in range(2 * length)))


def recompute_all(graph: Graph) -> list[int]:
    """Executions that keep nothing: all forward ops that it needs, before each backward op."""
    length = len(graph.ops) // 2
    computes = list(range(length + 1))
    for i in range(1, length):
        computes += [*range(length - i), length + i]
    return computes
