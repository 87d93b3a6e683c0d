"""The planner of Chen et al.: no two live results share memory, and both techniques save some."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given, settings

from lowtide.frontends.chains import linear_chain, transformer
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.memory.chen import plan_tags
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..strategies import graphs


def lives(graph: Graph) -> dict[int, tuple[int, int]]:
    """First and last op of each tensor that an op makes, in base order."""
    arrays, last = graph.arrays, len(graph.ops) - 1
    found = {}
    for t, p in enumerate(arrays.producer.tolist()):
        if p >= 0:
            users = arrays.users(t).tolist()
            found[t] = (p, last if graph.tensors[t].output else max([p, *users]))
    return found


@settings(max_examples=80, deadline=None)
@given(graph=graphs(max_ops=8))
def test_live_results_have_memory_of_their_own(graph: Graph) -> None:
    """But for an output in the place of the input that dies with its op."""
    span = lives(graph)
    for in_place, sharing in itertools.product((False, True), repeat=2):
        tags = plan_tags(graph, in_place=in_place, sharing=sharing)
        for t in span:
            assert tags.bytes[tags.of[t]] >= graph.tensors[t].size_bytes
        for a, b in itertools.combinations(span, 2):
            if tags.of[a] != tags.of[b]:
                continue
            first, second = sorted((a, b), key=lambda t: span[t])
            handed = graph.arrays.overwrites[span[second][0]] == first and in_place
            assert span[first][1] < span[second][0] or (
                handed and span[first][1] == span[second][0]
            )
            assert sharing or in_place


@settings(max_examples=40, deadline=None)
@given(graph=graphs(max_ops=8))
def test_each_technique_saves_and_none_undercuts_what_is_live(graph: Graph) -> None:
    """Own memory >= in-place alone; nothing is smaller than the peak of live results."""
    own = plan_tags(graph, in_place=False, sharing=False)
    assert own.total_bytes == graph.resident_bytes + sum(
        graph.tensors[t].size_bytes for t in lives(graph)
    )
    assert plan_tags(graph, sharing=False).total_bytes <= own.total_bytes
    bare = msgspec.structs.replace(
        graph,
        ops=tuple(
            msgspec.structs.replace(op, workspace_bytes=0, rerun_workspace_bytes=-1)
            for op in graph.ops
        ),
    )
    live = simulate(bare, Schedule.keep_everything(bare)).peak_bytes
    assert plan_tags(graph).total_bytes >= live


def test_a_chain_for_inference_needs_two_buffers_or_one() -> None:
    """Without a backward phase results die at once: two take turns, in place one does."""
    ops = tuple(Op(f"{i}", "", 1, (i - 1,) if i else (), (i,)) for i in range(10))
    tensors = tuple(Tensor(f"{i}", 8) for i in range(10))
    graph = Graph("chain", ops, tensors)
    assert plan_tags(graph, sharing=False).total_bytes == 80
    assert plan_tags(graph).total_bytes == 16
    over = tuple(msgspec.structs.replace(op, overwrites=i - 1) for i, op in enumerate(ops))
    assert plan_tags(msgspec.structs.replace(graph, ops=over)).total_bytes == 8


def test_training_saves_gradients_and_temporaries_only() -> None:
    """What backward reads stays: sharing helps, though less than without a backward phase."""
    for graph in (linear_chain(16), transformer(3)):
        own = plan_tags(graph, in_place=False, sharing=False).total_bytes
        shared = plan_tags(graph).total_bytes
        live = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
        assert live <= shared < own
        assert shared <= 1.2 * live
