"""A captured program gives the bits of the eager step: loss, gradients, buffers, random state."""

from __future__ import annotations

import gc
import random
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.interface import TensorGuard
from lowtide.frontends.torch.program import Kind

from . import models
from .reference import compare, fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def captured_of(make: Callable[[], models.Made], **options: Any) -> tuple[Captured, Any]:
    """The captured step of a model from `models`, and its batch."""
    torch.manual_seed(0)
    model, batch, loss = make()
    return capture(model, batch, loss, times="none", **options), batch


@cache
def gpt() -> tuple[Captured, Any]:
    """The transformer, captured once for all tests that only look at it."""
    return captured_of(models.gpt)


@pytest.mark.parametrize("make", models.EXACT, ids=lambda make: make.__name__)
def test_program_equals_eager(make: Callable[[], models.Made]) -> None:
    """Outputs, gradients with their strides, buffers, inputs and generator are equal to the bit."""
    captured, batch = captured_of(make)
    keep = make is models.penalty  # its loss closes over the batch
    assert compare(captured.model, lambda: batch if keep else fresh(batch), captured) == []


@pytest.mark.parametrize("make", [models.cnn, models.one_module_twice], ids=lambda m: m.__name__)
def test_model_and_generators_are_untouched(make: Callable[[], models.Made]) -> None:
    """Capture changes neither parameters, buffers and modules nor any random state."""
    torch.manual_seed(3)
    random.seed(3)
    model, batch, loss = make()
    before = {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    states = torch.get_rng_state(), random.getstate()
    capture(model, batch, loss, times="none")
    after = model.state_dict(keep_vars=True)
    assert all(id(after[n]) == i and torch.equal(after[n], t) for n, (i, t) in before.items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert all(p.grad is None for p in model.parameters())


def test_same_step_gives_same_graph() -> None:
    """Two captures of one step have the same structure hash; another batch size has not."""
    first = captured_of(models.unet)[0].graph
    second = captured_of(models.unet)[0].graph
    model, _, loss = models.unet()
    other = capture(model, torch.zeros(3, 1, 8, 8), loss, times="none").graph
    assert first.structure_hash == second.structure_hash != other.structure_hash
    assert [op.name for op in first.ops] == [op.name for op in second.ops]


def test_fake_and_meta_models_give_the_same_graph() -> None:
    """A model without data is captured like one with data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = captured_of(models.mlp)[0].graph
    with FakeTensorMode():
        model, batch, loss = models.mlp()
    assert capture(model, batch, loss, times="none").graph.structure_hash == real.structure_hash
    with torch.device("meta"):
        model, batch, loss = models.mlp()
    on_cpu = capture(model, batch, loss, times="none", device="cpu")
    assert on_cpu.graph.structure_hash == real.structure_hash


def test_tied_weight_is_one_parameter() -> None:
    """Tied parameters are one input with one gradient, and counted once."""
    captured, _ = gpt()
    names = [spec.fqn for spec in captured.program.inputs if spec.kind == "param"]
    assert "embedding.weight" in names
    assert "head.weight" not in names
    assert captured.program.shared == (("embedding.weight", "head.weight"),)
    parameters = sum(p.numel() * 4 for p in captured.model.parameters())
    assert captured.graph.resident_bytes == parameters + 2 * 7 * 8  # ids given twice


def test_only_the_loss_is_differentiable() -> None:
    """Beside one scalar loss, other outputs that carry gradients refuse a backward."""
    captured, _ = gpt()
    loss, logits = captured.program.outputs
    assert (loss.differentiable, loss.refuse_backward) == (True, False)
    assert (logits.differentiable, logits.refuse_backward) == (False, True)
    tangents = [spec for spec in captured.program.inputs if spec.kind == "tangent"]
    assert [spec.position for spec in tangents] == [0]


def test_several_outputs_have_their_own_tangents() -> None:
    """Without a single scalar loss every output that carries gradients has a tangent."""
    captured, _ = captured_of(models.two_losses)
    assert [o.differentiable for o in captured.program.outputs] == [True, True]
    positions = [s.position for s in captured.program.inputs if s.kind == "tangent"]
    assert positions == [0, 1]


def test_structured_output_comes_back_in_its_own_classes() -> None:
    """Leaves and structure rebuild the output, dataclass included; aliases of inputs are known."""
    from torch.utils._pytree import tree_unflatten

    captured, _ = captured_of(models.structured)
    program = captured.program
    out: Any = tree_unflatten(list(range(len(program.outputs))), program.out_spec)
    extra: Any = out["extra"]
    assert program.outputs[extra.name].literal == "s"
    assert type(extra) is models.Extra
    assert program.outputs[out["hidden"][1]].literal is None
    position = program.outputs[out["input"]].input_position
    assert position is not None
    assert program.inputs[position].kind == "input"
    assert program.outputs[out["part"]].input_position == position
    weight = program.outputs[out["weight"]].input_position
    assert weight is not None
    assert program.inputs[weight].fqn == "weight"


def test_guards_describe_every_argument() -> None:
    """There is one guard per leaf of the arguments: tensors by look, the rest by value."""
    captured, batch = captured_of(models.structured)
    tensor, scale, act = captured.program.guards
    assert tensor == TensorGuard((3, 4), torch.float32, torch.device("cpu"), (4, 1), False)
    assert [guard.value for guard in (scale, act)] == [0.5, torch.tanh]  # type: ignore[union-attr]
    assert captured.example[1:] == batch[1:]
    assert captured.example[0].device.type == "meta"


def test_example_keeps_integers_only() -> None:
    """Integer inputs are copied for the profiler; the user's batch is not kept alive."""
    captured, batch = gpt()
    assert torch.equal(captured.example[0], batch["ids"])
    assert captured.example[0] is not batch["ids"]


def test_loss_module_parameters_are_named() -> None:
    """Parameters of a loss module are inputs under `loss_fn.` and get gradients."""

    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.ones(3))

        def forward(self, out: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
            return (out * self.factor - batch[0][:, :3]).square().mean()

    model, batch, _ = models.mlp()
    captured = capture(model, batch, Scale(), times="none")
    names = [captured.program.inputs[g.input].fqn for g in captured.program.gradients]
    assert "loss_fn.factor" in names
    assert compare(model, lambda: batch, captured) == []


def test_ops_name_the_users_lines_and_modules() -> None:
    """Forward and backward ops carry module path and source line of the user's code."""
    captured, _ = gpt()
    products = [
        op for op in captured.graph.ops if op.kind in ("aten.mm.default", "aten.addmm.default")
    ]
    forward = [op for op in products if op.phase == "forward"]
    backward = [op for op in products if op.phase == "backward"]
    assert any(op.module == "blocks.1.linear1" for op in forward)
    assert any(op.module == "blocks.1.linear1" for op in backward)
    assert all("models.py:" in op.source for op in products)
    head = [op for op in forward if op.module == "head"]
    assert head[0].source.endswith("logits = self.head(hidden)")


def test_ops_of_pytorchs_own_modules_have_no_line() -> None:
    """The line that asks for the capture is none of the step's: module paths say where."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    captured = capture(model, torch.randn(2, 4), lambda out: out.sum(), times="none")
    gelu = next(op for op in captured.graph.ops if op.kind == "aten.gelu.default")
    assert (gelu.source, gelu.module) == ("", "1")
    total = next(op for op in captured.graph.ops if op.kind == "aten.sum.default")
    assert "lambda out: out.sum()" in total.source
    assert repr(captured).startswith("<captured step of Sequential: ")
    assert len(repr(captured)) < 100


def test_ambient_autocast_is_recorded() -> None:
    """A step captured under autocast runs its forward in it and its backward outside."""
    model = models.Lambda(lambda self, x: self.lin(x).float().sum())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(model, (models.rows(),), times="none")
    assert captured.program.autocast == (("cpu", torch.bfloat16),)
    assert any("bf16" in tensor.spec for tensor in captured.graph.tensors)
    assert capture(model, (models.rows(),), times="none").program.autocast == ()


def test_traced_hooks_compute() -> None:
    """With trace_hooks, hooks that only compute are part of the step."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h: torch.Tensor = self.lin(x)
        h.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]
        return h.sum()

    model = models.Lambda(body)
    model.lin.register_forward_hook(lambda _module, _args, out: out * 1.5)
    captured = capture(model, (models.rows(),), times="none", trace_hooks=True)
    assert compare(model, lambda: (models.rows(),), captured) == []


def test_extra_resident_bytes_are_counted() -> None:
    """Optimizer state is added to the resident bytes."""
    plain, _ = captured_of(models.mlp)
    more, _ = captured_of(models.mlp, extra_resident_bytes=1000)
    assert more.graph.resident_bytes == plain.graph.resident_bytes + 1000


def test_boundary_splits_the_ops() -> None:
    """Everything before the boundary is forward, everything from it on is backward."""
    captured, _ = captured_of(models.cnn)
    kinds = [op.kind for op in captured.program.ops]
    at = kinds.index(Kind.BACKWARD)
    assert captured.graph.ops[at].kind == "lowtide.backward"
    assert not captured.graph.ops[at].recompute
    assert all(op.phase == "forward" for op in captured.graph.ops[:at])
    assert all(op.phase == "backward" for op in captured.graph.ops[at:])
    assert Kind.BACKWARD not in kinds[at + 1 :]


_collections = 0


class _Collects(torch.nn.Linear):
    """Collects garbage in the middle of its forward, as Python does whenever it likes."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return super().forward(input)


def _count(_phase: str, _info: dict[str, int]) -> None:
    global _collections
    _collections += 1


def test_callbacks_of_the_collector_are_none_of_the_step() -> None:
    """What such a callback reads and changes is neither guarded nor taken for a counter."""
    others = list(gc.callbacks)
    gc.callbacks.append(_count)
    try:
        captured = capture(_Collects(2, 1), torch.ones(1, 2), lambda out: out.sum(), times="none")
        assert gc.callbacks == [*others, _count]
    finally:
        gc.callbacks.remove(_count)
    assert not captured.program.reads.changing
    assert "_collections" not in captured.program.reads.names
