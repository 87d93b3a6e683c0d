"""Random graphs: reproducible, and with everything in them that planners have to cope with."""

from __future__ import annotations

from lowtide.frontends.generated import random_graph


def test_random_graphs_are_reproducible() -> None:
    """The same arguments give the same graph, others another one."""
    assert random_graph(7, 12) == random_graph(7, 12)
    assert random_graph(7, 12) != random_graph(8, 12)
    assert {op.phase for op in random_graph(7, 12, training=False).ops} == {"none"}
    assert random_graph(7, 12).ops[12].kind == "lowtide.backward"


def test_random_steps_hold_every_special_case() -> None:
    """Over a few seeds there are run-once ops, several outputs, workspaces and zero sizes."""
    graphs = [random_graph(seed, 20) for seed in range(10)]
    ops = [op for graph in graphs for op in graph.ops]
    tensors = [tensor for graph in graphs for tensor in graph.tensors]
    assert any(not op.recompute and op.phase == "forward" and op.outputs for op in ops)
    assert any(len(op.outputs) > 1 for op in ops)
    assert any(not op.outputs for op in ops)
    assert any(op.workspace_bytes > 0 for op in ops)
    assert any(op.rerun_workspace_bytes >= 0 for op in ops)
    assert any(tensor.size_bytes == 0 for tensor in tensors)
    assert any(graph.resident_bytes > 0 for graph in graphs)
