"""Finding blocks: borders, their mirror in the backward phase, and which blocks are alike."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from lowtide.frontends.chains import (
    linear_chain,
    random_layered,
    residual_chain,
    residual_network,
    transformer,
    unet,
)
from lowtide.solver.blocks.classes import classes, merge_most_frequent, stretches
from lowtide.solver.blocks.cut import find_cuts
from lowtide.solver.graph import Graph

from ..strategies import graphs

if TYPE_CHECKING:
    from lowtide.solver.blocks.cut import Cuts

REPEATING = {
    graph.name: graph
    for graph in (
        linear_chain(20),
        residual_chain(12),
        transformer(8),
        residual_network(50),
        residual_network(50, stages=(3, 4, 6, 3)),
    )
}


def anonymous(graph: Graph) -> Graph:
    """The same graph without module paths or telling names."""
    ops = tuple(
        msgspec.structs.replace(op, name=f"op{i}", module="", source="")
        for i, op in enumerate(graph.ops)
    )
    return Graph(graph.name, ops, graph.tensors)


def jittered(graph: Graph, noise: float) -> Graph:
    """The same graph with times as a profiler would measure them."""
    generator = np.random.default_rng(0)
    ops = tuple(
        msgspec.structs.replace(op, time_ns=round(op.time_ns * generator.uniform(1, 1 + noise)))
        for op in graph.ops
    )
    return Graph(graph.name, ops, graph.tensors)


def check_cuts(graph: Graph, cuts: Cuts) -> None:
    """All that the dynamic program takes for granted."""
    assert cuts.forward[0] == 0
    assert cuts.forward[-1] == graph.boundary
    assert cuts.backward[-1] == graph.boundary
    assert cuts.backward[0] == len(graph.ops)
    assert cuts.forward == sorted(set(cuts.forward))
    assert cuts.backward == sorted(cuts.backward, reverse=True)
    for block in range(len(cuts.forward) - 1):
        entering = set(cuts.crossing(cuts.forward[block]))
        for op in range(cuts.backward[block + 1], cuts.backward[block]):
            for t in graph.ops[op].inputs:
                made = int(cuts.made[t])
                if 0 <= made < graph.boundary and not cuts.kept[t]:
                    inside = cuts.forward[block] <= made < cuts.forward[block + 1]
                    assert inside or t in entering


@pytest.mark.parametrize("graph", [*REPEATING.values(), unet(3)], ids=[*REPEATING, "unet"])
def test_backward_parts_read_their_block_and_its_inputs(graph: Graph) -> None:
    """What a block's backward ops read is made in the block, handed to it, or kept anyway."""
    found = find_cuts(graph)
    assert found
    for cuts in found:
        check_cuts(graph, cuts)


@settings(max_examples=60, deadline=None)
@given(graphs(training=True, max_ops=12))
def test_cuts_of_any_graph_hold(graph: Graph) -> None:
    """Whatever the graph: either no cut, or one that the dynamic program may rely on."""
    for cuts in find_cuts(graph):
        check_cuts(graph, cuts)


@pytest.mark.parametrize("graph", REPEATING.values(), ids=REPEATING)
def test_repeated_blocks_are_found_without_module_paths(graph: Graph) -> None:
    """All but a few blocks fall into classes of several, names and paths removed."""
    bare = anonymous(graph)
    cuts = find_cuts(bare)[0]
    sequence = classes(bare, cuts)
    counts = Counter(sequence)
    alone = sum(1 for number in sequence if counts[number] == 1)
    assert alone <= 12
    assert sum(counts[number] for number in counts if counts[number] > 1) >= 0.5 * len(sequence)
    assert sequence == classes(graph, find_cuts(graph)[0])


def test_noise_of_times_does_not_tell_blocks_apart_but_twice_the_time_does() -> None:
    """Times within a tolerance are alike; a block that takes twice as long is another."""
    graph = transformer(8)
    cuts = find_cuts(graph)[0]
    exact = classes(graph, cuts)
    assert classes(jittered(graph, 0.08), cuts) == exact
    slow = tuple(
        msgspec.structs.replace(op, time_ns=2 * op.time_ns) if "block3." in op.name else op
        for op in graph.ops
    )
    assert len(set(classes(Graph("slow", slow, graph.tensors), cuts))) > len(set(exact))


def test_long_lived_tensors_do_not_hide_the_blocks() -> None:
    """A mask that all blocks read is kept, and the blocks are still found."""
    graph = residual_chain(12)
    tensors = (*graph.tensors, msgspec.structs.replace(graph.tensors[1], name="mask"))
    mask = len(graph.tensors)
    ops = list(graph.ops)
    ops[0] = msgspec.structs.replace(ops[0], outputs=(*ops[0].outputs, mask))
    for i in range(1, graph.boundary - 1):
        if ".layer1" in ops[i].name:
            ops[i] = msgspec.structs.replace(ops[i], inputs=(*ops[i].inputs, mask))
    masked = Graph("masked", tuple(ops), tensors)
    cuts = find_cuts(masked)[0]
    assert cuts.kept[mask]
    check_cuts(masked, cuts)
    assert max(Counter(classes(masked, cuts)).values()) >= 10


def test_graphs_without_phases_or_repeats_are_left_alone() -> None:
    """No backward phase, or nothing to decide on: no cut."""
    assert find_cuts(random_layered(40)) == []
    assert find_cuts(Graph("empty", (), ())) == []


def test_merging_takes_the_most_frequent_pair() -> None:
    """`a b` occurs three times and becomes one block; the last block is left alone."""
    sequence, starts = merge_most_frequent([0, 1, 2, 1, 2, 1, 2, 3], range(8))
    assert sequence == [0, 4, 4, 4, 3]
    assert starts == [0, 1, 3, 5, 7]
    again, begin = merge_most_frequent(sequence, starts)
    assert again == sequence
    assert begin == starts


def test_merging_halves_a_run() -> None:
    """Of a run of one class pairs are made, and an odd one stays."""
    sequence, starts = merge_most_frequent([0] * 7 + [1], range(8))
    assert sequence == [2, 2, 2, 0, 1]
    assert starts == [0, 2, 4, 6, 7]


def test_stretches_are_numbered_by_content() -> None:
    """Two stretches have the same number exactly if their classes are the same."""
    sequence = [0, 1, 1, 0, 1, 2]
    number, firsts = stretches(sequence)
    seen: dict[int, tuple[int, ...]] = {}
    for i in range(6):
        for j in range(i, 6):
            content = tuple(sequence[i : j + 1])
            assert seen.setdefault(int(number[i, j]), content) == content
    assert len(seen) == len(set(seen.values())) == len(firsts)
    lengths = firsts[:, 1] - firsts[:, 0]
    assert (np.diff(lengths) >= 0).all()
