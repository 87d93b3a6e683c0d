"""Generated families: the shapes that they claim, and costs that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lowtide.frontends.chains import (
    MIB,
    MILLISECOND,
    linear_chain,
    random_layered,
    residual_chain,
    transformer,
    unet,
)
from lowtide.solver.errors import InputError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph

STEPS = [
    linear_chain(5),
    linear_chain(5, weight_bytes=8),
    residual_chain(3),
    unet(3),
    transformer(2),
]


def readers(graph: Graph, name: str) -> list[str]:
    """Names of the ops that read a tensor."""
    index = [tensor.name for tensor in graph.tensors].index(name)
    return [op.name for op in graph.ops if index in op.inputs]


@pytest.mark.parametrize("graph", STEPS, ids=lambda graph: graph.name)
def test_steps_have_one_boundary_between_the_phases(graph: Graph) -> None:
    """Forward ops, then `lowtide.backward`, which runs once, then backward ops."""
    phases = [op.phase for op in graph.ops]
    assert phases == sorted(phases, key=["forward", "backward"].index)
    boundary = graph.ops[graph.boundary]
    assert boundary.kind == "lowtide.backward"
    assert not boundary.recompute
    assert boundary.time_ns == 0


@pytest.mark.parametrize("graph", STEPS, ids=lambda graph: graph.name)
def test_every_parameter_gets_a_gradient(graph: Graph) -> None:
    """Each weight has a gradient of its size, which is an output of the step."""
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    weights = [name for name in sizes if name.endswith(".weight")]
    outputs = {tensor.name for tensor in graph.tensors if tensor.output and tensor.size_bytes > 4}
    assert {f"{name}.gradient" for name in weights} == outputs
    assert all(sizes[f"{name}.gradient"] == sizes[name] for name in weights)


@pytest.mark.parametrize("graph", STEPS, ids=lambda graph: graph.name)
def test_backward_results_are_used(graph: Graph) -> None:
    """Every gradient is read by somebody or is an output."""
    for op in graph.ops[graph.boundary + 1 :]:
        for t in op.outputs:
            tensor = graph.tensors[t]
            assert tensor.output or readers(graph, tensor.name), tensor.name


def test_chain_peak_and_time() -> None:
    """Keeping n unit layers holds n + 1 units: all outputs and the first gradient."""
    graph = linear_chain(10, backward_ratio=3)
    result = simulate(graph, Schedule.keep_everything(graph))
    assert (result.peak_bytes - graph.resident_bytes) // MIB == 11
    assert result.time_ns == (10 + 3 * 10) * MILLISECOND


def test_first_layer_without_weight_ends_in_a_token() -> None:
    """The batch needs no gradient; an output of zero bytes makes the op run all the same."""
    graph = linear_chain(3)
    last = graph.ops[-1]
    assert last.name == "layer0.gradient"
    assert [(graph.tensors[t].size_bytes, graph.tensors[t].output) for t in last.outputs] == [
        (0, True)
    ]


def test_chain_takes_numbers_for_each_layer() -> None:
    """Sizes, times and weights can be given one by one."""
    graph = linear_chain(3, size_bytes=[1, 2, 3], time_ns=[4, 5, 6], weight_bytes=[0, 7, 0])
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    assert [sizes[f"layer{i}"] for i in range(3)] == [1, 2, 3]
    assert [op.time_ns for op in graph.ops[:3]] == [4, 5, 6]
    assert sizes["layer1.weight"] == 7
    assert "layer0.weight" not in sizes


def test_backward_time_is_shared_by_both_gradients() -> None:
    """The gradients of input and weight together take the ratio times the forward time."""
    graph = linear_chain(2, time_ns=[10, 20], weight_bytes=4, backward_ratio=2)
    times = {op.name: op.time_ns for op in graph.ops}
    assert times["layer1.gradient"] + times["layer1.weight_gradient"] == 40
    assert times["layer0.weight_gradient"] == 20
    assert "layer0.gradient" not in times


def test_saved_outputs_are_read_by_the_gradient() -> None:
    """With `saves_output` a layer's gradient reads the layer's output too."""
    assert "layer1.gradient" in readers(linear_chain(3, saves_output=True), "layer1")
    assert "layer1.gradient" not in readers(linear_chain(3), "layer1")


def test_wrong_chains_are_refused() -> None:
    """A chain needs a layer, and lists need one number a layer."""
    with pytest.raises(InputError, match="at least 1 layer"):
        linear_chain(0)
    with pytest.raises(InputError, match="size_bytes has 2 numbers for 3 layers"):
        linear_chain(3, size_bytes=[1, 2])


def test_residual_gradients_are_summed() -> None:
    """The input of a block is read twice, so its two gradients are added."""
    graph = residual_chain(2, inner=2)
    sums = [op for op in graph.ops if op.kind == "add" and op.phase == "backward"]
    assert {len(op.inputs) for op in sums} == {2}
    assert len(sums) == 2  # the outputs of the stem and of the first block
    assert readers(graph, "stem")[:2] == ["block0.layer0", "block0.sum"]


def test_unet_skips_reach_across() -> None:
    """The last layer on the way down is read again at the same level on the way up."""
    graph = unet(3)
    assert "up0.layer0" in readers(graph, "down0.layer1")
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    assert sizes["bottom3.layer0"] * 8 == sizes["down0.layer0"]


def test_transformer_grows_with_its_blocks() -> None:
    """Ops and time are linear in the blocks; the weights are 12 width^2 a block."""
    two, four, six = transformer(2), transformer(4), transformer(6)
    assert len(six.ops) - len(four.ops) == len(four.ops) - len(two.ops)
    weights = sum(t.size_bytes for t in two.tensors if t.name.endswith(".weight"))
    assert weights == 2 * 12 * 768 * 768 * 2
    assert any(len(op.outputs) > 1 for op in two.ops)


def test_layered_graphs_are_random_but_reproducible() -> None:
    """The seed decides; every node but the last is read; there is one output."""
    graph = random_layered(80, seed=5)
    assert graph == random_layered(80, seed=5)
    assert graph != random_layered(80, seed=6)
    assert len(graph.ops) == 80
    read = {t for op in graph.ops for t in op.inputs}
    assert read == set(range(79))
    assert [t.output for t in graph.tensors].count(True) == 1
    with pytest.raises(InputError, match="at least 2 nodes"):
        random_layered(1)
