"""Backward semantics: what users do with a loss works on a replayed step as on a plain one."""

from __future__ import annotations

import copy
import functools
import gc
import random
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.module import ReplayModule
from lowtide.runtime.replay import replay
from lowtide.runtime.wiring import Wiring
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ..models import fresh, square
from ..schedules import plan_of, random_schedule

pytestmark = pytest.mark.usefixtures("one_thread")


def _replayed(model: nn.Module, batch: Any, loss_fn: Any = None, seed: int = 1) -> ReplayModule:
    """A replay of `model` with random recomputations."""
    captured = capture(model, batch, loss_fn)
    return replay(
        captured, plan_of(captured.graph, random_schedule(captured.graph, random.Random(seed)))
    )


def _net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12),
        nn.Sigmoid(),
        nn.Dropout(0.2),
        nn.Linear(12, 12),
        nn.Tanh(),
        nn.Linear(12, 1),
    )


@functools.cache
def _shared() -> tuple[ReplayModule, torch.Tensor]:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(7))
    return _replayed(_net(), x, square), x


def _pair() -> tuple[nn.Module, ReplayModule, torch.Tensor]:
    """The same net plain and replayed, and a batch."""
    module, x = _shared()
    return _net(), copy.deepcopy(module), x


def _parameters(module: nn.Module) -> list[Any]:
    return list(module.parameters())


def _grads(module: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def _same(a: list[torch.Tensor | None], b: list[torch.Tensor | None]) -> bool:
    return len(a) == len(b) and all(
        (x is None and y is None) or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(a, b, strict=True)
    )


def test_second_backward_with_retained_graph() -> None:
    """Two backwards over one forward accumulate exactly as in the plain run."""
    plain, module, x = _pair()
    found = []
    for net, loss_fn in ((plain, square), (module, None)):
        torch.manual_seed(3)
        loss = net(x) if loss_fn is None else loss_fn(net(x))
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(_grads(net))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    assert _same(*found)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_forwards_then_backwards(order: tuple[int, int]) -> None:
    """Forwards may overlap, and run backward in any order, with losses scaled differently."""
    plain, module, x = _pair()
    found = []
    for net, loss_fn in ((plain, square), (module, None)):
        torch.manual_seed(3)
        outs = [net(x + i) for i in range(2)]
        losses = [out if loss_fn is None else loss_fn(out) for out in outs]
        for i in order:
            (losses[i] * (i + 0.5)).backward()
        found.append(_grads(net))
    assert _same(*found)


def test_gradient_accumulation_keeps_the_tensor() -> None:
    """Over micro-batches gradients add up into the same tensor."""
    plain, module, x = _pair()
    found = []
    for net, loss_fn in ((plain, square), (module, None)):
        torch.manual_seed(3)
        first = None
        for i in range(3):
            out = net(x * (i + 1))
            (out if loss_fn is None else loss_fn(out)).backward()
            grad = next(net.parameters()).grad
            assert first is None or grad is first
            first = grad
        found.append(_grads(net))
    assert _same(*found)


def test_create_graph_is_refused() -> None:
    """Gradients of gradients raise instead of being silently constant."""
    _, module, x = _pair()
    with pytest.raises(ReplayError, match="create_graph=True"):
        torch.autograd.grad(module(x), list(module.parameters()), create_graph=True)


def test_autograd_grad_on_some_parameters() -> None:
    """`torch.autograd.grad` gives the same for the last, the first and all parameters."""
    plain, module, x = _pair()
    for pick in (slice(-1, None), slice(0, 1), slice(None)):
        found = []
        for net, loss_fn in ((plain, square), (module, None)):
            torch.manual_seed(3)
            out = net(x)
            loss = out if loss_fn is None else loss_fn(out)
            grads: list[Any] = list(torch.autograd.grad(loss, _parameters(net)[pick]))
            found.append(grads)
            assert all(p.grad is None for p in net.parameters())
        assert _same(*found)


def test_input_gradients() -> None:
    """Leaf and non-leaf inputs get their gradients, inputs that do not require one get none."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
            return self.b(torch.tanh(self.a(x * y)) + z)

    found = []
    for replayed in (False, True):
        torch.manual_seed(0)
        net: nn.Module = Net()
        x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
        leaf = torch.randn(4, 8, requires_grad=True)
        run = _replayed(net, (x, y, leaf * 2)) if replayed else net
        square(run(x, y, leaf * 2)).backward()  # type: ignore[no-untyped-call]
        found.append([x.grad, y.grad, leaf.grad, *_grads(net)])
        assert y.grad is None
    assert _same(*found)


def test_hooks_of_parameters() -> None:
    """Tensor hooks and accumulation hooks of parameters fire, once each, with plain values."""
    plain, module, x = _pair()
    found: list[list[torch.Tensor | None]] = []
    for net, loss_fn in ((plain, square), (module, None)):
        seen: list[torch.Tensor | None] = []

        def double(grad: torch.Tensor, seen: Any = seen) -> torch.Tensor:
            seen.append(grad.clone())
            return grad * 2

        def note(parameter: Any, seen: Any = seen) -> None:
            seen.append(parameter.grad.clone())

        for parameter in _parameters(net):
            parameter.register_hook(double)
            parameter.register_post_accumulate_grad_hook(note)
        torch.manual_seed(3)
        out = net(x)
        (out if loss_fn is None else loss_fn(out)).backward()
        assert len(seen) == 2 * len(list(net.parameters()))
        found.append(_grads(net))
    assert _same(*found)


@pytest.mark.parametrize("stages", [1, 3, 100])
def test_optimizer_inside_backward(stages: int) -> None:
    """An optimizer that steps in gradient hooks never changes a weight that is still to be read."""
    captured = _pair()[1].captured
    schedule = random_schedule(captured.graph, random.Random(5), drop=0.6)
    module = _with_stages(captured, schedule, stages)
    plain, x = _net(), torch.ones(5, 6)
    for net, loss_fn in ((plain, square), (module, None)):
        for parameter in _parameters(net):
            optimizer = torch.optim.SGD([parameter], lr=0.1)

            def step(p: torch.Tensor, optimizer: Any = optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
        torch.manual_seed(3)
        for _ in range(2):
            out = net(x)
            (out if loss_fn is None else loss_fn(out)).backward()
    assert _same(list(plain.parameters()), list(module.parameters()))


def _with_stages(captured: Any, schedule: Schedule, stages: int) -> ReplayModule:
    wiring = Wiring(captured.program, schedule, stages=stages)
    return ReplayModule(captured, plan_of(captured.graph, schedule), wiring)


@pytest.mark.parametrize("stages", [1, 2, 5, 100])
def test_stages_do_not_change_results(stages: int) -> None:
    """However many stages backward has, gradients and peak accumulation are the same."""
    plain, module, x = _pair()
    captured = module.captured
    module = _with_stages(captured, Schedule.keep_everything(captured.graph), stages)
    assert len(module._wiring.code.stages) <= stages
    assert sum(map(len, module._wiring.code.stages)) == 6
    for net, loss_fn in ((plain, square), (module, None)):
        torch.manual_seed(3)
        for _ in range(2):
            out = net(x)
            (out if loss_fn is None else loss_fn(out)).backward()
    assert _same(_grads(plain), _grads(module))


def test_stages_hand_gradients_over_early() -> None:
    """With several stages the last layers' gradients are there before backward has ended."""
    captured = _pair()[1].captured
    module = _with_stages(captured, Schedule.keep_everything(captured.graph), 100)
    assert len(module._wiring.code.stages) > 2
    early: list[int] = []
    parameters = _parameters(module)
    parameters[0].register_hook(lambda g: early.append(sum(p.grad is not None for p in parameters)))
    module(torch.ones(5, 6)).backward()
    assert early[0] >= 4


def test_anomaly_detection_works() -> None:
    """`detect_anomaly` runs through."""
    _, module, x = _pair()
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        module(x).backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("which", ["parameter", "input"])
def test_in_place_change_before_backward_is_an_error(which: str) -> None:
    """A weight or an input that changes between forward and backward is refused, as in PyTorch."""
    _, module, x = _pair()
    x = x.clone()
    loss = module(x)
    # The first weight is read only by the gradient of the input, which nobody asks for.
    changed = list(module.parameters())[2] if which == "parameter" else x
    with torch.no_grad():
        changed.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_place_change_of_an_output_is_an_error() -> None:
    """An output that backward needs cannot be overwritten unnoticed."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.a(x))

    module = _replayed(Net(), torch.ones(2, 4))
    out = module(torch.ones(2, 4))
    loss = out.sum()
    with torch.no_grad():
        out.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_frozen_after_capture_gets_no_gradient() -> None:
    """A parameter frozen after capture keeps `.grad` None; the others are as before."""
    plain, module, x = _pair()
    for net in (plain, module):
        next(iter(net.parameters())).requires_grad_(False)
    for net, loss_fn in ((plain, square), (module, None)):
        torch.manual_seed(3)
        out = net(x)
        (out if loss_fn is None else loss_fn(out)).backward()
    assert next(module.parameters()).grad is None
    assert _same(_grads(plain), _grads(module))


def test_dropping_the_loss_frees_memory_at_once() -> None:
    """No reference cycle: deleting the loss frees what backward would have needed."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.a(x)).exp()

    module = _replayed(Net(), torch.ones(2, 4))
    gc.collect()
    gc.disable()
    try:
        out = module(torch.ones(2, 4))
        node = weakref.ref(out.grad_fn)
        saved = [weakref.ref(t) for t in out.grad_fn.run.saved if not isinstance(t, nn.Parameter)]
        assert saved
        del out
        assert node() is None
        assert all(tensor() is None for tensor in saved)
    finally:
        gc.enable()


def test_partial_backward_frees_memory() -> None:
    """When the engine needs only the last stage, the rest of the backward is not kept."""
    captured = _pair()[1].captured
    module = _with_stages(captured, Schedule.keep_everything(captured.graph), 100)
    loss = module(torch.ones(5, 6))
    torch.autograd.grad(loss, list(module.parameters())[-1])
    assert loss.grad_fn.run.running is None
    assert loss.grad_fn.run.saved is None


def test_several_outputs_and_missing_tangents() -> None:
    """Each output may run backward alone; gradients of the others count as zero."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            h = torch.tanh(self.a(x))
            return {"one": h, "two": (self.b(h).exp(), x.sum(), 3), "same": h}

    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    module = _replayed(twin, torch.ones(2, 4))
    found = []
    for run in (net, module):
        out = run(torch.ones(2, 4))
        assert list(out) == ["one", "two", "same"]
        assert out["two"][2] == 3
        assert not out["two"][1].requires_grad
        assert out["one"] is out["same"]
        (out["two"][0].sum() + out["one"].sum() * 2 + out["same"].square().sum()).backward(
            retain_graph=True
        )
        out["two"][0].sum().backward()
        found.append(_grads(run))
    assert _same(*found)


def test_output_that_is_not_the_loss_refuses_backward() -> None:
    """Logits returned beside a loss are usable, and raise when gradients reach them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            logits = self.a(x)
            return {"loss": logits.square().mean(), "logits": logits}

    module = _replayed(Net(), torch.ones(2, 4))
    out = module(torch.ones(2, 4))
    assert out["logits"].argmax(-1).shape == (2,)
    with pytest.raises(ReplayError, match="no gradient in the replayed step"):
        out["logits"].sum().backward()
    for parameter in module.parameters():
        logits = module(torch.ones(2, 4))["logits"].sum()
        with pytest.raises(ReplayError, match="no gradient in the replayed step"):
            torch.autograd.grad(logits, parameter)
    module(torch.ones(2, 4))["loss"].backward()
    assert all(p.grad is not None for p in module.parameters())


def test_graph_memory_after_backward() -> None:
    """After backward nothing of the step stays but gradients and outputs."""
    from lowtide.frontends.torch.costs.meter import measure_peak

    case, captured = fresh("mlp")
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    (x,) = case.batch(0)

    def step() -> torch.Tensor:
        loss: torch.Tensor = module(x)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    reading = measure_peak(step)
    gradient_bytes = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
    assert reading.end_bytes == gradient_bytes + 4


class _Heads(nn.Module):
    """A shared trunk, two heads with a loss each, and a view in between."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.two = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each head."""
        h = self.trunk(x).tanh()
        return self.one(h.view(-1, 4)).square().mean(), self.two(h).square().mean()


def test_gradients_out_of_reach_are_none() -> None:
    """Backward from some outputs leaves the other outputs' own parameters without a gradient."""
    torch.manual_seed(0)
    plain, x = _Heads(), torch.randn(5, 4)
    module = _replayed(copy.deepcopy(plain), x)
    assert isinstance(module, ReplayModule)
    for pick in ((0,), (1,), (0, 1)):
        found: list[list[torch.Tensor | None]] = []
        asked: list[list[torch.Tensor | None]] = []
        for net in (plain, module):
            net.zero_grad()
            torch.autograd.backward([net(x)[i] for i in pick])
            found.append(_grads(net))
            losses = [net(x)[i] for i in pick]
            asked.append([*torch.autograd.grad(losses, _parameters(net), allow_unused=True)])
        assert _same(*found)
        assert _same(*asked)
        assert any(grad is None for grad in found[0]) is (len(pick) == 1)


@pytest.mark.parametrize("stages", [1, 8])
def test_absent_gradients_leave_weight_decay_alone(stages: int) -> None:
    """An optimizer does not decay the parameters of a head that had no loss, however staged."""
    torch.manual_seed(0)
    plain, x = _Heads(), torch.randn(5, 4)
    module = _replayed(copy.deepcopy(plain), x)
    module.__dict__["_wiring"] = Wiring(
        module.captured.program, module.plan.schedule, stages=stages
    )
    for net in (plain, module):
        optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            net(x)[0].backward()
            optimizer.step()
    pairs = zip(_parameters(plain), _parameters(module), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
