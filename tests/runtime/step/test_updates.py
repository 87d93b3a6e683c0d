"""Buffers that ops update in place: once a step, with the bits, bytes and versions of eager."""

from __future__ import annotations

import copy
import pickle
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch import lower, norms
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile
from lowtide.frontends.torch.program import Kind
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.pickling import register
from lowtide.runtime.replay import replay
from lowtide.solver.schedule import Schedule

from ...plans import recomputing
from .. import buffered
from ..buffered import Step, averages, images
from ..models import square
from ..schedules import plan_of, random_schedule, reordered

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured

    from ...frontends.models import Made

pytestmark = pytest.mark.usefixtures("one_thread")


ALL: tuple[Callable[[], Made], ...] = (
    images, buffered.channels_last, buffered.mixed, buffered.unscaled,
    buffered.narrow, buffered.mixed_layouts, averages, buffered.read_before,
    buffered.results_unread,
)  # fmt: skip


def _schedules(captured: Captured) -> list[Schedule]:
    """Nothing again, all that backward needs again, and at random in base and in another order."""
    graph = captured.graph
    return [
        Schedule.keep_everything(graph),
        recomputing(graph, len(graph.ops)),
        random_schedule(graph, random.Random(0), drop=0.6),
        reordered(graph, random.Random(1), drop=0.6),
    ]


def _state(model: nn.Module) -> dict[str, tuple[torch.Tensor, int]]:
    return {name: (b.clone(), b._version) for name, b in model.named_buffers()}


def _exact(made: Made) -> None:
    """Several steps by several schedules: bits and versions of eager, predicted bytes."""
    model, batch, loss = made
    assert loss is not None
    captured = profile(capture(model, batch, loss), budget_s=0.1)
    changed = [name for op in captured.program.ops for name in _changed(captured, op.changes)]
    assert set(changed) <= set(dict(model.named_buffers()))
    assert not any(op.kind is Kind.WRITE_BACK for op in captured.program.ops)
    batches = [tuple(t * (1 + step) for t in batch) for step in range(3)]
    for schedule in _schedules(captured):
        module = replay(captured, plan_of(captured.graph, schedule))
        found = verify(model, module, batches, repeats=1)
        assert found.ok, found.first_difference
        assert found.replay_peak_bytes == found.predicted_peak_bytes
        eager = copy.deepcopy(model)
        before, plain = _state(model), _state(eager)
        for number, given in enumerate(batches):
            module(*given).backward()
            loss(eager(*given)).backward()
            for net in (model, eager) if number == 1 else ():  # an evaluation in between
                with torch.no_grad():
                    net.eval()(*given)
                net.train()
        for name, (value, version) in _state(model).items():
            expected, count = _state(eager)[name]
            assert torch.equal(value, expected), name
            assert version - before[name][1] == count - plain[name][1], name
        model.zero_grad()


def _changed(captured: Captured, places: tuple[int, ...]) -> list[str]:
    return [captured.program.inputs[place].fqn for place in places]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_updates_are_exact(make: Callable[[], Made]) -> None:
    """No schedule updates twice, late or other than eager, and new contents take no memory."""
    torch.manual_seed(0)
    _exact(make())


def test_the_choosing_batch_norm_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of CUDA has no variant without statistics: it runs again on copies that are counted."""
    chosen = norms.chosen_norms
    monkeypatch.setattr(
        lower, "chosen_norms", lambda lines, values: chosen(lines, values, ("cpu",))
    )
    torch.manual_seed(0)
    made = images()
    graph = capture(*made, times="none").graph
    assert [op.rerun_workspace_bytes for op in graph.ops if "norm_with_update" in op.kind] == [
        40
    ] * 2
    _exact(made)


def test_new_contents_are_not_in_the_graph() -> None:
    """Of a batch norm there are its results, of a counter nothing but a place in the order."""
    captured = capture(*images(), times="none")
    graph, buffers = captured.graph, dict(captured.model.named_buffers())
    norm = next(op for op in graph.ops if op.kind == "aten._native_batch_norm_legit.default")
    assert [graph.tensors[t].size_bytes for t in norm.outputs] == [4 * 5 * 36 * 4, 20, 20]
    counter = next(op for op in graph.ops if op.kind == "aten.add_.Tensor")
    assert not counter.recompute
    assert sum(graph.tensors[t].size_bytes for t in counter.outputs) == 0
    assert len(buffers) == sum(len(op.changes) for op in captured.program.ops) == 6
    # One op again is one without the statistics: the code neither holds nor touches them there.
    module = replay(captured, plan_of(graph, recomputing(graph, len(graph.ops))))
    backward = module.code[module.code.index("def backward") :]
    statistics = [spec.value for spec in captured.program.inputs if spec.kind == "buffer"]
    assert "native_batch_norm_legit(" in backward
    assert backward.count(" again") > 2
    held = set(re.findall(r"v\d+", backward[: backward.index("def alias_outputs")]))
    assert not held & {f"v{value}" for value in statistics}


@pytest.mark.parametrize(
    ("make", "in_place"),
    [
        (buffered.twice, {"n.num_batches_tracked"}),
        (buffered.shared_statistics, {"a.num_batches_tracked", "b.num_batches_tracked"}),
        (buffered.cumulative, set()),
        (buffered.read_after, set()),
        (buffered.other_type, set()),
        (buffered.instances, set()),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_where_somebody_could_tell_the_old_way_stays(
    make: Callable[[], Made], in_place: set[str]
) -> None:
    """What is read otherwise, or does not fit, is written back at the end; steps are exact."""
    torch.manual_seed(0)
    model, batch, loss = make()
    captured = capture(model, batch, loss, times="none")
    found = [name for op in captured.program.ops for name in _changed(captured, op.updates)]
    assert set(found) == in_place
    assert any(op.kind is Kind.WRITE_BACK for op in captured.program.ops)
    batches = [tuple(t * (1 + step) for t in batch) for step in range(3)]
    for schedule in _schedules(captured):
        module = replay(captured, plan_of(captured.graph, schedule))
        verified = verify(model, module, batches, measure=False)
        assert verified.ok, verified.first_difference


def test_an_exception_leaves_what_eager_leaves() -> None:
    """Buffers of layers that ran are updated once and counted, those of later ones are not."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.a(self.lin(x))
        inverse = torch.linalg.inv(h.t() @ h)
        return self.b(h @ inverse)

    torch.manual_seed(0)
    model = Step(body, a=nn.BatchNorm1d(4, eps=1.0), b=nn.BatchNorm1d(4))
    x = torch.randn(8, 4)
    captured = capture(model, (x,), square, times="none")
    plan = plan_of(captured.graph, Schedule.keep_everything(captured.graph))
    module, eager = replay(captured, plan), copy.deepcopy(model)
    versions, copied = ({n: b._version for n, b in it.named_buffers()} for it in (model, eager))
    for net in (module, eager):
        with pytest.raises(RuntimeError, match="singular"):
            net(torch.zeros_like(x))
    for name, (value, version) in _state(model).items():
        expected, count = _state(eager)[name]
        assert torch.equal(value, expected), name
        assert version - versions[name] == count - copied[name], name
    assert int(model.get_buffer("a.num_batches_tracked")) == 1
    assert int(model.get_buffer("b.num_batches_tracked")) == 0


def test_copies_and_pickles_update_their_own_buffers() -> None:
    """A copied or unpickled step changes its own model, as often as eager, and no other."""
    torch.manual_seed(0)
    register()
    model, batch, _ = images()
    captured = capture(model, batch, square, times="none")
    plan = plan_of(captured.graph, recomputing(captured.graph, len(captured.graph.ops)))
    for twin in (copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        before = _state(model)
        module, eager = replay(twin, plan), copy.deepcopy(model)
        for _ in range(2):
            module(*batch).backward()
            eager(*batch)
        for name, (value, _) in _state(twin.model).items():
            assert torch.equal(value, _state(eager)[name][0])
            assert torch.equal(model.get_buffer(name), before[name][0])


def test_two_backwards_update_once() -> None:
    """Reruns of a second backward leave the statistics alone, too."""
    torch.manual_seed(0)
    model, batch, _ = images()
    captured = capture(model, batch, square, times="none")
    plan = plan_of(captured.graph, recomputing(captured.graph, len(captured.graph.ops)))
    module = replay(captured, plan)
    loss = module(*batch)
    after = _state(model)
    loss.backward(retain_graph=True)
    loss.backward()
    for name, (value, version) in _state(model).items():
        assert torch.equal(value, after[name][0])
        assert version == after[name][1]


def test_measuring_changes_no_buffer() -> None:
    """In-place ops are timed on buffers of their own."""
    torch.manual_seed(0)
    for make in (images, averages):
        model, batch, loss = make()
        before = _state(model)
        graph = profile(capture(model, batch, loss), budget_s=0.1, cache=False).graph
        assert all(op.time_ns > 0 for op in graph.ops if "lowtide" not in op.kind)
        for name, (value, version) in _state(model).items():
            assert torch.equal(value, before[name][0])
            assert version == before[name][1]
