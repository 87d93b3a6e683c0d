"""The generated code: names, frees, views, order."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.program import Kind
from lowtide.runtime.generate.codegen import generate
from lowtide.runtime.generate.emitter import Emitter
from lowtide.runtime.generate.views import equal_views
from lowtide.solver.errors import CheckError, ReplayError
from lowtide.solver.schedule import Schedule

from ..models import SMALL, fresh, profiled, square
from ..schedules import random_schedule, unmarked

if TYPE_CHECKING:
    from lowtide.frontends.torch.program import Program

pytestmark = pytest.mark.usefixtures("one_thread")


def _computes(graph: Any) -> list[int]:
    return list(range(len(graph.ops)))


def test_no_value_outlives_its_last_use() -> None:
    """In backward every name but the tangents is deleted or pushed."""
    _, captured = profiled("mlp")
    code = generate(captured.program, Schedule.keep_everything(captured.graph))
    backward = code.source[code.source.index("def backward") : code.source.index("def alias")]
    made = set(re.findall(r"^    (?!del)(v\d+)(?:, v\d+)* = ", backward, re.M))
    deleted = set(re.findall(r"v\d+", " ".join(re.findall(r"del (.*)", backward))))
    tangent = set(re.findall(r"saved, (v\d+)", backward))
    views_of_tangent = {line.split(" = ")[0] for line in re.findall(r"v\d+ = expand.*", backward)}
    assert made - views_of_tangent - tangent <= deleted


@pytest.mark.parametrize("name", SMALL)
def test_each_execution_is_one_statement(name: str) -> None:
    """There are as many op statements as executions, each rerun is marked."""
    _, captured = profiled(name)
    schedule = random_schedule(captured.graph, random.Random(2))
    code = generate(captured.program, schedule)
    assert len(re.findall(r" again$", code.source, re.M)) == schedule.recomputes()


def test_double_transposes_disappear() -> None:
    """A view that looks like an earlier one is not made."""
    _, captured = profiled("mlp")
    same = equal_views(captured.program)
    assert same
    for view, first in same.items():
        metas = captured.program.value_meta
        assert metas[view].shape == metas[first].shape
        assert metas[view].stride == metas[first].stride
        assert captured.program.value_tensor[view] == captured.program.value_tensor[first]
    source = generate(captured.program, Schedule.keep_everything(captured.graph)).source
    assert "detach" not in source
    assert not {f"v{v}" for v in same} & set(re.findall(r"v\d+", source))


def _refused(program: Program, order: list[int], message: str) -> None:
    """No plan has this order; if the graph let it pass, the runtime would refuse it."""
    with pytest.raises(CheckError, match="is read before it is produced"):
        Schedule.from_computes(program.graph, order)
    bare = unmarked(program)
    with pytest.raises(ReplayError, match=message):
        generate(bare, Schedule.from_computes(bare.graph, order))


def test_outputs_must_be_made_in_forward() -> None:
    """A schedule that computes the loss after the boundary is refused."""
    _, captured = fresh("mlp")
    graph, program = captured.graph, captured.program
    loss = next(i for i, op in enumerate(program.ops) if program.outputs[0].value in op.writes)
    order = [i for i in _computes(graph) if i not in (graph.boundary, loss)]
    order[loss:loss] = [graph.boundary, loss]
    _refused(program, order, "after the backward starts")


def test_random_ops_must_keep_their_order() -> None:
    """A schedule that draws in another order is refused."""
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.25))
    captured = capture(net, (torch.ones(2, 3, requires_grad=True),), square)
    graph, program = captured.graph, captured.program
    states = [i for i, op in enumerate(program.ops) if op.kind is Kind.RNG_STATE]
    assert len(states) == 2
    order = _computes(graph)
    order.remove(states[1])
    order.insert(order.index(states[0]), states[1])
    _refused(program, order, "moves the random op")


def test_random_ops_stay_in_their_phase() -> None:
    """A schedule that draws in backward what the step draws in forward is refused."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    captured = capture(net, torch.ones(2, 3), square)
    graph, program = captured.graph, captured.program
    state = next(i for i, op in enumerate(program.ops) if op.kind is Kind.RNG_STATE)
    order = [i for i in _computes(graph) if i < state or i == graph.boundary]
    order += [i for i in _computes(graph) if i not in order]
    _refused(program, order, "across the start of the backward")


def test_buffer_updates_stay_in_forward() -> None:
    """A schedule that changes a buffer in backward, or a counter twice, is refused."""
    captured = capture(_Counts(), torch.ones(2, 3), square)
    graph, program = captured.graph, captured.program
    writes = [i for i, op in enumerate(program.ops) if op.changes]
    assert {program.ops[i].kind for i in writes} == {Kind.WRITE_BACK, Kind.CALL}
    norm = next(i for i in writes if program.ops[i].again is not None)
    for write in writes:
        order = _computes(graph)
        order.remove(write)
        order.append(write)
        what = "before the backward" if write == norm else "once and before the backward"
        _refused(program, order, f"must run {graph.ops[write].name} {what}")
        order = _computes(graph)
        order.insert(graph.boundary, write)
        if write != norm:
            with pytest.raises(ReplayError, match=what):
                generate(program, Schedule.from_computes(graph, order))


class _Counts(nn.Module):
    """Buffers that are changed in every way: by a norm, in place and by a copy at the end."""

    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        self.norm(x)
        self.last.copy_(x.mean(0))
        return x * self.norm.weight


def test_shared_gradients_get_memory_of_their_own() -> None:
    """Two parameters with the very same gradient do not share it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> Any:
            return ((self.a + self.b) * x).exp()

    from lowtide.runtime.replay import replay

    from ..schedules import plan_of

    captured = capture(Net(), torch.ones(3), lambda out: out.sum())
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    module(torch.ones(3)).backward()
    a, b = (p.grad for p in module.parameters())
    assert a is not None
    assert b is not None
    assert torch.equal(a, b)
    assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
    module(torch.ones(3)).backward()
    assert torch.equal(a, b)
    assert torch.allclose(a, 2 * torch.full((3,), 2.0).exp())


def test_reading_a_freed_value_is_an_error() -> None:
    """The emitter refuses to name what is not in memory."""
    _, captured = fresh("mlp")
    op = next(op for op in captured.program.ops if op.kind is Kind.CALL)
    with pytest.raises(ReplayError, match="before it is computed"):
        Emitter(captured.program).ensure(op.writes[0])


def test_long_programs_compile_in_linear_time() -> None:
    """Twenty thousand statements compile in about a second."""
    import time

    from lowtide.runtime.generate.source import build_functions

    body = "\n".join(f"    v{i} = op(v{i - 1}, 0.5)\n    del v{i - 1}" for i in range(1, 20_000))
    start = time.process_time()
    (run,) = build_functions(
        f"def run(v0):\n{body}\n    return v19999\n", {"op": lambda a, b: a + b}, ("run",), "test"
    )
    assert time.process_time() - start < 10
    assert run(0.0) == 0.5 * 19_999
