"""Graphs: validation, derived numbers, arrays, hash."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given

from lowtide.solver.errors import InputError
from lowtide.solver.graph import Graph, Op, Tensor

from .strategies import graphs

TENSORS = (Tensor("w", 100), Tensor("a", 10), Tensor("b", 20, output=True))
OPS = (
    Op("first", "mm", 5, (0,), (1,), workspace_bytes=7, rerun_workspace_bytes=9),
    Op("second", "mm", 6, (1, 0), (2,), recompute=False, phase="backward"),
)


def small() -> Graph:
    """One resident tensor and two ops."""
    return Graph("small", OPS, TENSORS, extra_resident_bytes=1000)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Op("x", "k", 1, (0, 0), (1,)),), "lists a tensor twice"),
        ((Op("x", "k", 1, (), (1, 1)),), "lists a tensor twice"),
        ((Op("x", "k", 1, (9,), (1,)),), "names tensor 9; there are 3"),
        ((Op("x", "k", 1, (), (-1,)),), "names tensor -1; there are 3"),
        ((Op("x", "k", 1, (1,), (2,)), Op("y", "k", 1, (), (1,))), "not a topological order"),
        ((Op("x", "k", 1, (1,), (1,)),), "not a topological order"),
        ((Op("x", "k", 1, (), (1,)), Op("y", "k", 1, (), (1,))), "which another op produces"),
        ((Op("x", "k", -1, (), (1,)),), "negative time or workspace"),
        ((Op("x", "k", 1, (), (1,), workspace_bytes=-5),), "negative time or workspace"),
        ((Op("x", "k", 1, (), (1,)), Op("x", "k", 1, (), (2,))), "two ops have the same name"),
        ((Op("x", "k", 1, (0,), (1,), overwrites=0),), "overwrites tensor 0, which is not an inp"),
        ((Op("x", "k", 1, (), (1,), overwrites=9),), "overwrites tensor 9"),
        (
            (Op("x", "k", 1, (), (2,)), Op("y", "k", 1, (2,), (1,), overwrites=2)),
            "overwrites tensor 2, which is an output",
        ),
    ],
)
def test_refuses_broken_ops(ops: tuple[Op, ...], message: str) -> None:
    """Each way to break the ops has its own message, in one line, with the graph's name."""
    with pytest.raises(InputError, match=message) as caught:
        Graph("broken", ops, TENSORS)
    assert "\n" not in str(caught.value)
    assert "broken" in str(caught.value)


def test_refuses_negative_sizes() -> None:
    """A tensor cannot have less than zero bytes."""
    with pytest.raises(InputError, match="negative extra resident bytes"):
        Graph("g", (), (), extra_resident_bytes=-1)
    with pytest.raises(InputError, match="tensor 1 has a negative size"):
        Graph("broken", (), (Tensor("a", 1), Tensor("b", -1)))


def test_resident_bytes_are_those_without_producer() -> None:
    """Tensors that no op makes are resident, and so are the extra bytes."""
    assert small().resident_bytes == 1100


def test_boundary_is_the_first_backward_op() -> None:
    """Without a backward phase the boundary is the number of ops."""
    assert small().boundary == 1
    assert Graph("forward", OPS[:1], TENSORS).boundary == 1
    assert Graph("empty", (), ()).boundary == 0


def test_arrays_leave_residents_out() -> None:
    """The arrays hold the same graph, with inputs restricted to tensors that ops make."""
    arrays = small().arrays
    assert arrays.inputs(0).tolist() == []
    assert arrays.inputs(1).tolist() == [1]
    assert arrays.outputs(0).tolist() == [1]
    assert arrays.users(1).tolist() == [1]
    assert arrays.users(0).tolist() == []
    assert arrays.producer.tolist() == [-1, 0, 1]
    assert arrays.workspace.tolist() == [7, 0]
    assert arrays.rerun_workspace.tolist() == [9, 0]
    assert arrays.recompute.tolist() == [1, 0]
    assert arrays.output.tolist() == [0, 0, 1]


@given(graphs())
def test_arrays_agree_with_ops(graph: Graph) -> None:
    """On random graphs every array entry can be found in the ops, and nothing is missing."""
    arrays = graph.arrays
    made = {t for op in graph.ops for t in op.outputs}
    for i, op in enumerate(graph.ops):
        assert arrays.inputs(i).tolist() == [t for t in op.inputs if t in made]
        assert arrays.outputs(i).tolist() == list(op.outputs)
        assert all(arrays.producer[t] == i for t in op.outputs)
    for t in range(len(graph.tensors)):
        readers = [i for i, op in enumerate(graph.ops) if t in op.inputs and t in made]
        assert arrays.users(t).tolist() == readers
    assert np.array_equal(arrays.time, [op.time_ns for op in graph.ops])


def test_hash_does_not_depend_on_times_or_names() -> None:
    """A new measurement of the same step has the same hash."""
    graph = small()
    ops = tuple(
        msgspec.structs.replace(op, time_ns=op.time_ns + 1, name=op.name + "x", source="f.py:3")
        for op in OPS
    )
    tensors = tuple(msgspec.structs.replace(t, name=t.name + "x") for t in TENSORS)
    assert Graph("renamed", ops, tensors).structure_hash == graph.structure_hash


@pytest.mark.parametrize(
    "change",
    [{"kind": "conv"}, {"inputs": (0, 1)}, {"recompute": True}, {"phase": "forward"}],
)
def test_hash_depends_on_structure(change: dict[str, object]) -> None:
    """What a schedule depends on changes the hash."""
    second = msgspec.structs.replace(OPS[1], **change)
    assert Graph("g", (OPS[0], second), TENSORS).structure_hash != small().structure_hash


def test_hash_depends_on_what_may_be_overwritten() -> None:
    """A graph in which nothing is has the hash that it always had."""
    tensors = (*TENSORS, Tensor("c", 10))
    ops = (*OPS, Op("third", "relu", 1, (1,), (3,)))
    plain = Graph("g", ops, tensors).structure_hash
    assert plain == "096b714700ac02c2228dea239b5cfda844342dbb7c0e093fbb8c41994017545b"
    taken = (*OPS, msgspec.structs.replace(ops[2], overwrites=1))
    assert Graph("g", taken, tensors).structure_hash != plain


def test_hash_depends_on_sizes_only_without_shapes() -> None:
    """A tensor with a spec is identified by it, whatever the allocator makes of its size."""

    def hashed(size: int, spec: str) -> str:
        return Graph("g", (), (Tensor("a", size, spec=spec),)).structure_hash

    assert hashed(512, "f32[4]") == hashed(16, "f32[4]")
    assert hashed(512, "") != hashed(16, "")
    assert hashed(16, "f32[4]") != hashed(16, "f32[5]")


def test_graphs_cannot_be_changed() -> None:
    """Graphs are values: planners may share them."""
    with pytest.raises(AttributeError):
        small().name = "other"  # type: ignore[misc]
