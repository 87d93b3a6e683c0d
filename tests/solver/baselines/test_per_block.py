"""Checkpointing of repeated modules: which blocks are found, and what they keep."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from lowtide.frontends.chains import residual_chain, transformer
from lowtide.solver.baselines import NotApplicableError, per_block
from lowtide.solver.baselines.per_block import blocks, checkpoint_groups
from lowtide.solver.realise import Tables
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (
            ["embed", "transformer.h.0.attn", "transformer.h.0.mlp", "transformer.h.1", "head"],
            ["", "transformer.h.0", "transformer.h.0", "transformer.h.1", ""],
        ),
        (
            ["conv1", "layer1.0.conv1", "layer1.1.bn", "layer2.0.conv1", "layer2.1", "fc"],
            ["", "layer1.0", "layer1.1", "layer2.0", "layer2.1", ""],
        ),
        (["0", "1", "2.0", "2.1"], ["0", "1", "2", "2"]),
        (["stages.0.blocks.0", "stages.0.blocks.1"], ["stages.0.blocks.0", "stages.0.blocks.1"]),
        (
            ["module.encoder.layer.0.output", "module.encoder.layer.11.output", ""],
            ["module.encoder.layer.0", "module.encoder.layer.11", ""],
        ),
        (["a.0.b", "c.0.b", "d"], ["", "", ""]),
        (["", ""], ["", ""]),
    ],
)
def test_blocks_are_children_of_the_outermost_repeated_container(
    modules: list[str], expected: list[str]
) -> None:
    """Numbered siblings are blocks; a container with a single child is not repeated."""
    assert blocks(modules) == expected


def test_every_block_keeps_its_input_only() -> None:
    """Inside of blocks all that gradients read runs twice, everything else once.

    The sum that ends a block is the next one's input; the layer before it is read by no gradient.
    """
    graph = residual_chain(5, inner=3)
    tables = Tables.of(graph)
    block_of = blocks([op.module for op in graph.ops[: tables.boundary]])
    groups = {f"blocks.{i}": i for i in range(5)}
    candidate = checkpoint_groups(graph, tables, block_of, groups)
    runs = Counter(candidate.schedule.computes())
    for index, op in enumerate(graph.ops):
        inside = op.name.endswith(("layer0", "layer1"))
        assert runs[index] == (2 if inside else 1), op.name


def test_blocks_without_group_are_not_recomputed() -> None:
    """With two of five blocks checkpointed only those run again."""
    graph = residual_chain(5, inner=3)
    tables = Tables.of(graph)
    block_of = blocks([op.module for op in graph.ops[: tables.boundary]])
    candidate = checkpoint_groups(graph, tables, block_of, {"blocks.1": 0, "blocks.3": 1})
    again = Counter(candidate.schedule.computes()) - Counter(range(len(graph.ops)))
    assert {graph.ops[op].module.split(".")[1] for op in again} == {"1", "3"}


def test_fewer_blocks_for_larger_budgets() -> None:
    """The overhead shrinks as the budget grows, and each budget is met."""
    graph = transformer(8)
    base = simulate(graph, Schedule.keep_everything(graph))
    times = []
    for share in (1.0, 0.85, 0.7, 0.55):
        budget = graph.resident_bytes + int(share * (base.peak_bytes - graph.resident_bytes))
        schedule = per_block(graph, budget)
        assert schedule is not None
        result = simulate(graph, schedule)
        assert result.peak_bytes <= budget
        times.append(result.time_ns)
    assert times == sorted(times)
    assert times[0] == base.time_ns < times[-1]


def test_graph_without_repeated_modules() -> None:
    """Without module paths the method says why it cannot be used."""
    graph = transformer(2)
    ops = tuple(msgspec.structs.replace(op, module="") for op in graph.ops)
    with pytest.raises(NotApplicableError, match="needs repeated modules"):
        per_block(msgspec.structs.replace(graph, ops=ops), None)


def test_graph_without_backward_phase() -> None:
    """Without a backward phase there is nothing to recompute for."""
    graph = transformer(2)
    forward = msgspec.structs.replace(graph, ops=graph.ops[: graph.boundary])
    with pytest.raises(NotApplicableError, match="needs a backward phase"):
        per_block(forward, None)
