"""What fixes the order of ops beside data flow is in the graph, in few and weightless tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.program import Kind

from . import models
from .models import Lambda, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.solver.graph import Graph


@functools.cache
def _captured(make: Callable[[], models.Made]) -> Captured:
    model, batch, loss = make()
    return capture(model, batch, loss, times="none")


def _precede(graph: Graph, op: int) -> set[int]:
    """All ops that come before `op` in any order."""
    producer = {t: i for i, op in enumerate(graph.ops) for t in op.outputs}
    found: set[int] = set()
    stack = [op]
    while stack:
        for t in graph.ops[stack.pop()].inputs:
            if t in producer and producer[t] not in found:
                found.add(producer[t])
                stack.append(producer[t])
    return found


_MODELS = (
    models.cnn, models.gpt, models.inplace, models.teacher, models.checkpointed, models.structured,
    models.random_kinds, models.mutated_input, models.buffers, models.one_module_twice,
)  # fmt: skip


@pytest.mark.parametrize("make", _MODELS)
def test_draws_results_and_writes_have_their_place(make: Callable[[], models.Made]) -> None:
    """In every order: draws in turn, results and writes before the boundary, old reads first."""
    captured = _captured(make)
    graph, program = captured.graph, captured.program
    before = [_precede(graph, op) for op in range(len(graph.ops))]
    draws = [i for i, op in enumerate(program.ops) if op.random or op.kind is Kind.RNG_STATE]
    chain = [*draws, graph.boundary]
    chain.sort()
    assert all(set(chain[:place]) <= before[op] for place, op in enumerate(chain))
    of = program.value_tensor
    returned = {of[spec.value] for spec in program.outputs if spec.value is not None}
    makers = {i for i, op in enumerate(graph.ops) if returned & set(op.outputs)}
    writes: dict[int, list[int]] = {}
    for i, op in enumerate(program.ops):
        for changed in op.changes:
            writes.setdefault(of[program.inputs[changed].value], []).append(i)
    assert makers.union(*writes.values()) <= before[graph.boundary]
    for index, node in enumerate(graph.ops):
        for t in set(node.inputs) & set(writes):
            for write in writes[t]:
                assert index == write or (index in before[write]) is (index < write)


@pytest.mark.parametrize("make", _MODELS)
def test_marks_weigh_nothing_and_are_few(make: Callable[[], models.Made]) -> None:
    """At most one mark for each op; their bytes are zero; none can be dropped."""
    graph = _captured(make).graph
    marks = set(range(len(graph.tensors))) - set(_captured(make).program.value_tensor)
    assert all(graph.tensors[t].size_bytes == 0 and graph.tensors[t].output for t in marks)
    assert all(len(marks & set(op.outputs)) <= 1 for op in graph.ops)
    # Ops that draw, write or read what is written: nothing else is marked.
    reads = sum(len(op.inputs) for op in graph.ops)
    assert sum(len(marks & set(op.inputs)) for op in graph.ops) <= reads / 2


def test_plain_steps_have_no_marks() -> None:
    """Without random ops and state the order follows from the data alone."""
    graph = _captured(models.unet).graph
    assert not any(tensor.name.startswith("after.") for tensor in graph.tensors)


def test_a_long_chain_of_draws_stays_linear() -> None:
    """Twice the random ops make twice the marks."""

    def marks(count: int) -> int:
        net = nn.Sequential(*[nn.Dropout(0.5) for _ in range(count)])
        x = torch.ones(2, 3, requires_grad=True)
        graph = capture(net, (x,), lambda out: out.sum(), times="none").graph
        found = [t for t, tensor in enumerate(graph.tensors) if tensor.name.startswith("after.")]
        assert sum(len(set(op.inputs) & set(found)) for op in graph.ops) == len(found)
        return len(found)

    assert [marks(5), marks(10)] == [5, 10]


class _Noisy(torch.autograd.Function):
    """Rounding whose backward draws random numbers, with no need of the gradient it is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.shape = x.shape
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.rand(ctx.shape) * grad


def test_draws_of_the_backward_stay_there() -> None:
    """What the backward draws comes after the boundary although it needs no gradient."""

    def body(self: Any, x: torch.Tensor) -> Any:
        rounded: torch.Tensor = _Noisy.apply(F.dropout(self.lin(x), 0.5))  # type: ignore[no-untyped-call]
        return rounded.sum()

    captured = capture(Lambda(body), (rows(),), times="none")
    graph, program = captured.graph, captured.program
    late = [i for i, op in enumerate(program.ops) if op.random and i > graph.boundary]
    assert len(late) == 1
    assert graph.boundary in _precede(graph, late[0])


def test_checks_stay_in_their_phase() -> None:
    """A check that can raise in forward does so before forward returns."""
    captured = capture(
        Lambda(lambda self, x: self.lin(x).sum() + torch.linalg.inv(self.weight).sum()),
        (rows(),),
        times="none",
    )
    graph = captured.graph
    (check,) = [i for i, op in enumerate(graph.ops) if op.phase == "forward" and not op.recompute]
    assert check in _precede(graph, graph.boundary)
