"""Joint graphs split by arbitrary schedules compute what the plain step computes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from lowtide.frontends.torch.compile.inline import expressions
from lowtide.frontends.torch.compile.joint import BOUNDARY, JointGraph, joint_graph
from lowtide.frontends.torch.compile.layouts import copied_bytes
from lowtide.frontends.torch.compile.overwrites import overwritten
from lowtide.frontends.torch.compile.private import ends_of, merge_equal_nodes
from lowtide.frontends.torch.compile.roles import Role
from lowtide.frontends.torch.costs.machine import PRESETS
from lowtide.runtime.compile.emit import modules
from lowtide.solver.check import check_peak
from lowtide.solver.realise import Tables, realise_saved
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),  # inductor's imports
]

Planner = "Callable[[JointGraph], Sequence[int]]"


class Mixed(nn.Module):
    """Embedding, normalisations with and without state, dropout, several results of one op."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))
        self.batch = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        h = self.table(tokens)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = h + F.dropout(F.gelu(layer(norm(h))), 0.3)
        h, _ = self.batch(F.relu(h)).sort(dim=-1)
        scores: torch.Tensor = self.head(torch.cat([h[:, :4], h[:, 4:].sin()], 1))
        return scores


class Split:
    """A partition function that asks a planner for the executions, and remembers what it did."""

    def __init__(self, planner: Any) -> None:
        self.planner = planner
        self.joint: JointGraph | None = None
        self.backward: fx.GraphModule | None = None
        self.saved = 0

    def __call__(self, gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        """Forward and backward."""
        merge_equal_nodes(gm)
        self.joint = joint_graph(
            gm.graph, kwargs["num_fwd_outputs"], name="test", machine=PRESETS["cpu"]
        )
        schedule = Schedule.from_computes(self.joint.graph, self.planner(self.joint))
        forward, self.backward = modules(gm, self.joint, schedule)
        taken = [n.name for n in self.backward.graph.find_nodes(op="placeholder")]
        self.saved = sum(not name.startswith(("primals", "tangents")) for name in taken)
        return forward, self.backward


def split_step(model: nn.Module, batch: torch.Tensor, split: Split) -> list[torch.Tensor]:
    """Loss, gradients and buffers of one step, run as the split says."""
    from torch._functorch.aot_autograd import aot_module
    from torch._functorch.compilers import nop

    module = aot_module(model, fw_compiler=nop, bw_compiler=nop, partition_fn=split)
    return step(module, model, batch)


def step(call: Callable[..., Any], model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """Loss, gradients and buffers of one step."""
    torch.manual_seed(3)
    out = call(batch)
    loss = out.pow(2).mean()
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [loss.detach(), out.detach(), *gradients, *model.buffers()]


def everything(joint: JointGraph) -> range:
    """The base order."""
    return range(len(joint.graph.ops))


def keeping(fraction: float, hold: int | None, seed: int) -> Callable[[JointGraph], list[int]]:
    """Keeps a random part of the tensors; what is recomputed stays for `hold` ops."""

    def plan(joint: JointGraph) -> list[int]:
        draw = np.random.default_rng(seed)
        tensors = range(len(joint.graph.tensors))
        kept = [t for t in tensors if draw.random() < fraction]
        tables = Tables.of(joint.graph)
        return realise_saved(joint.graph, kept, hold=hold, tables=tables)

    return plan


def model_and_batch() -> tuple[nn.Module, torch.Tensor]:
    """The mixed model, and tokens for it."""
    torch.manual_seed(0)
    return Mixed(), torch.randint(0, 11, (6,))


@pytest.mark.parametrize(("fraction", "hold"), [(0.0, None), (0.0, 2), (0.5, None), (0.5, 1)])
def test_any_schedule_gives_the_same_step(fraction: float, hold: int | None) -> None:
    """Loss, gradients and buffers are those of the plain model to the bit, whatever is kept."""
    model, batch = model_and_batch()
    twin = copy.deepcopy(model)
    expected = step(model, model, batch)
    split = Split(keeping(fraction, hold, seed=1))
    found = split_step(twin, batch, split)
    assert len(found) == len(expected)
    for ours, plain in zip(found, expected, strict=True):
        assert torch.equal(ours, plain)
    assert split.joint is not None
    assert split.backward is not None


def test_recomputation_saves_less_and_computes_more() -> None:
    """Keeping nothing passes fewer tensors to the backward; a short hold copies ops more often."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.Tanh())]
    model, batch = nn.Sequential(*layers), torch.randn(3, 4)
    expected = step(model, copy.deepcopy(model), batch)
    counts, saved = [], []
    for planner in (everything, keeping(0.0, None, 0), keeping(0.0, 1, 0)):
        split = Split(planner)
        assert torch.equal(split_step(model, batch, split)[0], expected[0])
        assert split.backward is not None
        products = [n for n in split.backward.graph.nodes if "addmm" in str(n.target)]
        counts.append(len(products))
        saved.append(split.saved)
    assert saved[0] > saved[1]
    assert counts[0] == 0
    assert 0 < counts[1] < counts[2]


def test_recomputed_ops_stand_right_before_their_readers() -> None:
    """What only late readers need is not computed at the beginning of the backward."""
    model, batch = model_and_batch()
    split = Split(keeping(0.0, 1, 0))
    split_step(model, batch, split)
    assert split.backward is not None
    names = [n for n in split.backward.graph.nodes if n.op == "call_function"]
    first_late = next(i for i, n in enumerate(names) if "backward" in str(n.target))
    products = [i for i, n in enumerate(names) if "addmm" in str(n.target)]
    assert any(place > first_late for place in products)


def test_random_and_written_ops_run_once() -> None:
    """Draws, writes into inputs and readers of what is written may not be recomputed."""
    model, batch = model_and_batch()
    split = Split(everything)
    split_step(model, batch, split)
    assert split.joint is not None
    for op in split.joint.graph.ops:
        if "dropout" in op.kind or op.kind == BOUNDARY:
            assert not op.recompute
    assert any("dropout" in op.kind for op in split.joint.graph.ops)


def test_prediction_counts_what_is_alive() -> None:
    """The graph's peak is the same by both accountings, and less when less is kept."""
    model, batch = model_and_batch()
    split = Split(everything)
    split_step(model, batch, split)
    assert split.joint is not None
    graph = split.joint.graph
    peaks = []
    for computes in (everything(split.joint), keeping(0.0, None, 0)(split.joint)):
        schedule = Schedule.from_computes(graph, computes)
        assert check_peak(graph, schedule.to_text()) == simulate(graph, schedule).peak_bytes
        peaks.append(simulate(graph, schedule).peak_bytes)
    assert peaks[1] <= peaks[0]
    assert graph.boundary == split.joint.boundary


def test_cheap_expressions_are_not_kept() -> None:
    """ReLU's mask is computed in its reader: the backward takes the result of ReLU instead."""
    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    aten: Any = torch.ops.aten
    value = torch.empty(4, 4)
    for node in (x, tangent):
        node.meta["val"] = value

    def call(target: Any, *args: Any, dtype: torch.dtype = torch.float32) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = torch.empty(4, 4, dtype=dtype)
        return node

    product = call(aten.mm.default, x, x)
    relu = call(aten.relu.default, product)
    out = call(aten.mm.default, relu, x)
    mask = call(aten.le.Scalar, relu, 0, dtype=torch.bool)
    view = call(aten.t.default, x)
    gradient = call(aten.mm.default, tangent, view)
    masked = call(aten.where.self, mask, tangent, gradient)
    graph.output((out, masked))
    joint = joint_graph(graph, 1, name="relu", machine=PRESETS["cpu"])
    assert [op.name for op in joint.graph.ops] == [
        "mm_default", "relu_default", "mm_default_1", BOUNDARY, "mm_default_2", "where_self",
    ]  # fmt: skip
    assert joint.found.roles[view] is Role.FREE
    assert joint.found.leaves[mask] == (relu,)
    last = joint.graph.ops[-1]
    read = {joint.graph.tensors[t].name for t in last.inputs}
    assert read == {"relu_default", "tangents_1", "mm_default_2"}
    assert ends_of(graph, 1).gradients == (masked,)


def test_expressions_run_in_graph_order() -> None:
    """A node that two parts of an expression share is computed before both."""
    graph = fx.Graph()
    x = graph.placeholder("primals_1")
    x.meta["val"] = torch.empty(4, 4)
    aten: Any = torch.ops.aten

    def call(target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = torch.empty(4, 4)
        return node

    shared = call(aten.sin.default, x)
    inner = call(aten.cos.default, shared)
    outer = call(aten.add.Tensor, inner, shared)
    result = call(aten.mul.Tensor, shared, outer)
    graph.output((result,))
    found = expressions(graph, [result])
    assert found.closure(result) == [shared, inner, outer, result]


def graph_of(*calls: Any) -> tuple[fx.Graph, list[fx.Node]]:
    """A graph of one input and calls: target, arguments (places of earlier nodes), value."""
    graph = fx.Graph()
    nodes = [graph.placeholder("primals_1")]
    nodes[0].meta["val"] = torch.empty(4, 4)
    for target, args, value in calls:
        made = [nodes[a] if isinstance(a, int) else a for a in args]
        nodes.append(graph.call_function(target, tuple(made)))
        nodes[-1].meta["val"] = value
    graph.output((nodes[-1],))
    return graph, nodes


def test_elementwise_results_take_the_memory_of_what_dies() -> None:
    """Same type and places, last reader, made by an op: else a result has memory of its own."""
    aten: Any = torch.ops.aten
    square, half = torch.empty(4, 4), torch.empty(4, 4, dtype=torch.float16)

    def found(*calls: Any) -> list[str]:
        graph, nodes = graph_of(*calls)
        seen = expressions(graph, [nodes[-1]])
        return [
            f"{root.name} over {leaf.name}"
            for root, leaf in overwritten(seen, seen.roots, [nodes[-1]]).items()
        ]

    over = ["tanh_default over mm_default"]
    mm, tanh, end = aten.mm.default, aten.tanh.default, aten.mm.default
    product = (mm, (0, 0), square)
    assert found(product, (tanh, (1,), square), (end, (2, 0), square)) == [
        "tanh_default over mm_default"
    ]
    # Read once more afterwards.
    assert found(product, (tanh, (1,), square), (end, (2, 1), square)) == []
    # An input of the graph.
    assert found((tanh, (0,), square), (end, (1, 0), square)) == []
    # Another type, and other places.
    cast = (torch.ops.prims.convert_element_type.default, (1, torch.float16), half)
    assert found(product, cast, (end, (2, 2), half)) == []
    turned = (aten.t.default, (1,), square.t())
    assert found(product, turned, (tanh, (2,), square), (end, (3, 0), square)) == []
    # Through a view that keeps the order.
    flat, line = torch.empty(16), torch.empty(1, 16)
    seen = found(
        product, (aten.view.default, (1, [16]), flat), (tanh, (2,), flat),
        (aten.view.default, (3, [1, 16]), line), (mm, (4, 4), torch.empty(1, 16)),
    )  # fmt: skip
    assert seen == over


def test_inputs_of_convolutions_are_copied_once() -> None:
    """Inductor reads them with channels last: batch and weights that are not stored so."""
    weight, image = torch.empty(8, 3, 3, 3), torch.empty(2, 3, 9, 9)
    last = image.to(memory_format=torch.channels_last)
    for value, copied in ((image, image.nbytes + weight.nbytes), (last, weight.nbytes)):
        graph = fx.Graph()
        x, w = graph.placeholder("primals_1"), graph.placeholder("primals_2")
        x.meta["val"], w.meta["val"] = value, weight
        out = torch.ops.aten.convolution.default
        pad = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        node = graph.call_function(out, (x, w, None, *pad))
        node.meta["val"] = torch.empty(2, 8, 9, 9)
        graph.output((node,))
        module = fx.GraphModule(nn.Module(), graph)
        assert copied_bytes(module, torch.device("cpu")) == copied
    empty = fx.GraphModule(nn.Module(), graph_of((torch.ops.aten.tanh.default, (0,), weight))[0])
    assert copied_bytes(empty, torch.device("cpu")) == 0
