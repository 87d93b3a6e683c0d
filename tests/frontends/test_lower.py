"""The graph behind a program: storages, phases, random state, mutations and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.program import Kind
from lowtide.solver.errors import InputError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from . import models
from .models import Lambda, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.frontends.torch.program import Program


def step_of(body: Callable[..., object]) -> Captured:
    """The captured step of a `Lambda`."""
    return capture(Lambda(body), (rows(),), times="none")


def op_named(captured: Captured, kind: str) -> int:
    """Index of the first op of a kind."""
    return next(i for i, op in enumerate(captured.graph.ops) if op.kind == kind)


@pytest.mark.parametrize("make", [models.cnn, models.gpt, models.inplace, models.buffers])
def test_reads_and_writes_follow_the_storages(make: Callable[[], models.Made]) -> None:
    """Every op's tensors are those of its values, and values are made before they are read."""
    model, batch, loss = make()
    captured = capture(model, batch, loss, times="none")
    program = captured.program
    assert len(program.ops) == len(captured.graph.ops)
    made = {spec.value for spec in program.inputs if spec.kind != "tangent"}
    marks = {t for t in range(len(captured.graph.tensors)) if t not in program.value_tensor}
    returned = {program.value_tensor[spec.value] for spec in program.outputs if spec.value}
    for op, node in zip(program.ops, captured.graph.ops, strict=True):
        reads = {program.value_tensor[v] for v in op.reads}
        reads |= returned if op.kind is Kind.BACKWARD else set()
        assert reads == set(node.inputs) - marks
        assert {program.value_tensor[v] for v in op.writes} == set(node.outputs) - marks
        for value in op.reads:
            assert root_of(program, value) in made
        made.update(op.writes)
    simulate(captured.graph, Schedule.keep_everything(captured.graph))


def root_of(program: Program, value: int) -> int:
    """The base value that a view looks at."""
    while value in program.views:
        value = next(iter(program.views[value].refs()))
    return value


def test_unused_outputs_have_storages() -> None:
    """All results of a call that makes several are counted, read or not."""
    captured = step_of(lambda self, x: self.lin(x).max(dim=1)[0].sum())
    node = captured.graph.ops[op_named(captured, "aten.max.dim")]
    assert [captured.graph.tensors[t].spec for t in node.outputs] == ["f32[3]", "i64[3]"]


def test_views_cost_nothing() -> None:
    """Transposes, slices and reshapes are no ops."""
    captured = step_of(lambda self, x: self.lin(x).t()[1:].unsqueeze(0).flatten(0, 1).sum())
    assert [op.kind for op in captured.graph.ops if op.phase == "forward"] == [
        "aten.addmm.default",
        "aten.sum.default",
    ]


def test_random_op_reads_its_generator_state() -> None:
    """A random op that backward needs can be rerun: its generator state is saved before it."""
    captured = step_of(lambda self, x: nn.functional.dropout(self.lin(x), 0.5).square().sum())
    at = op_named(captured, "lowtide.bernoulli")
    op, state = captured.program.ops[at], captured.program.ops[at - 1]
    assert state.kind is Kind.RNG_STATE
    assert op.random
    assert op.rng_value == state.writes[0]
    node = captured.graph.ops[at]
    assert node.recompute
    assert not captured.graph.ops[at - 1].recompute
    size = torch.get_rng_state().numel()
    assert node.rerun_workspace_bytes == size
    assert captured.graph.tensors[captured.graph.ops[at - 1].outputs[0]].size_bytes == size
    again = captured.with_costs(workspace=[100] * len(captured.graph.ops)).graph.ops[at]
    assert (again.workspace_bytes, again.rerun_workspace_bytes) == (100, 100 + size)


def test_switched_off_random_ops_are_ordinary() -> None:
    """Attention without dropout and dropout in evaluation draw nothing."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x).view(1, 1, 3, 4)
        out = nn.functional.scaled_dot_product_attention(h, h, h)
        return nn.functional.dropout(out, 0.5, training=False).sum()

    captured = step_of(body)
    assert not any(op.random for op in captured.program.ops)
    assert not any(op.kind is Kind.RNG_STATE for op in captured.program.ops)


def test_random_op_without_use_in_backward_runs_once() -> None:
    """A draw that backward does not depend on stays, in its place, and is never rerun."""

    def body(self: Any, x: torch.Tensor) -> Any:
        torch.rand(3)
        return self.lin(x).sum()

    captured = step_of(body)
    at = op_named(captured, "aten.rand.default")
    assert captured.program.ops[at].random
    assert not captured.graph.ops[at].recompute
    assert captured.program.ops[at].rng_value is None


def test_batch_norm_can_be_rerun() -> None:
    """A training batch norm updates its statistics itself; what runs again does not touch them."""
    model, batch, loss = models.cnn()
    captured = capture(model, batch, loss, times="none")
    program = captured.program
    norm = next(
        i for i, op in enumerate(captured.graph.ops) if "_native_batch_norm_legit" in op.kind
    )
    assert captured.graph.ops[norm].recompute
    assert not any(op.kind is Kind.SNAPSHOT for op in program.ops)
    again = program.ops[norm].again
    assert again is not None
    assert again.outputs == tuple(program.ops[norm].writes)
    buffers = {spec.value for spec in program.inputs if spec.kind == "buffer"}
    assert len(buffers & set(program.ops[norm].reads)) == 2
    assert not buffers.intersection(again.refs())
    targets = [program.inputs[changed].fqn for op in program.ops for changed in op.changes]
    assert sorted(targets) == sorted(name for name, _ in model.named_buffers())
    assert not any(op.kind is Kind.WRITE_BACK for op in program.ops)


def test_changed_buffer_is_read_from_a_snapshot() -> None:
    """An op that backward needs reads a copy of a buffer that changes later."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x) * self.one.exp()
        self.one.add_(1)
        return h.square().sum()

    captured = step_of(body)
    at = op_named(captured, "aten.exp.default")
    snapshot = captured.program.ops[at - 1]
    assert snapshot.kind is Kind.SNAPSHOT
    assert captured.program.ops[at].reads == snapshot.writes
    assert captured.graph.ops[at].recompute
    update = op_named(captured, "aten.add_.Tensor")
    assert not captured.graph.ops[update].recompute  # it changes the buffer, so it runs once
    buffer = next(s.value for s in captured.program.inputs if s.fqn == "one")
    assert captured.program.ops[update].reads == (buffer,)
    assert captured.program.ops[update].writes == ()


def test_gradients_own_their_storages() -> None:
    """Each gradient is an output with a dense storage of its own, in its parameter's strides."""
    model, batch, loss = models.gradient_layouts()
    captured = capture(model, batch, loss, times="none")
    program, graph = captured.program, captured.graph
    storages = [program.value_tensor[g.value] for g in program.gradients if g.value is not None]
    assert len(set(storages)) == len(storages)
    parameters = dict(model.named_parameters())
    for gradient in program.gradients:
        spec = program.inputs[gradient.input]
        if gradient.value is None:
            assert spec.fqn in ("lin.weight", "lin.bias")
            continue
        meta = program.value_meta[gradient.value]
        assert meta.stride == parameters[spec.fqn].stride()
        tensor = graph.tensors[program.value_tensor[gradient.value]]
        assert tensor.output
        assert tensor.size_bytes == 4 * parameters[spec.fqn].numel()


def test_parameter_gradients_are_not_deferred() -> None:
    """Backward ops stand in the order of the engine: gradients come layer by layer."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    captured = capture(model, (rows(),), lambda out: out.square().sum(), times="none")
    producer = {v: i for i, op in enumerate(captured.program.ops) for v in op.writes}
    made = {
        captured.program.inputs[g.input].fqn: producer[root_of(captured.program, g.value)]
        for g in captured.program.gradients
        if g.value is not None
    }
    assert made["3.weight"] < made["2.weight"] < made["1.weight"] < made["0.weight"]


def test_checks_are_kept_and_run_once() -> None:
    """An operator with an effect and no result stays in its phase."""
    captured = step_of(lambda self, x: torch.linalg.inv(self.weight).sum())
    node = captured.graph.ops[op_named(captured, "aten._linalg_check_errors.default")]
    assert (node.phase, node.recompute) == ("forward", False)
    assert [captured.graph.tensors[t].size_bytes for t in node.outputs] == [0]  # its mark


def test_checks_of_ones_own_are_kept() -> None:
    """So does one of a library that PyTorch knows nothing about."""
    with torch.library._scoped_library("lowtide_checks", "DEF") as library:
        library.define("fine(Tensor x) -> ()")
        library.impl("fine", lambda x: None, "CompositeExplicitAutograd")
        library.impl("fine", lambda x: None, "Meta")

        def body(self: Any, x: torch.Tensor) -> Any:
            torch.ops.lowtide_checks.fine(x)
            return self.lin(x).sum()

        assert op_named(step_of(body), "lowtide_checks.fine.default") >= 0


def test_costs_of_the_wrong_length_are_refused() -> None:
    """A list of costs must have one entry per op or tensor."""
    captured = step_of(lambda self, x: self.lin(x).sum())
    with pytest.raises(InputError, match="the graph has"):
        captured.with_costs(time_ns=[1, 2])
