"""A replayed module passes for the original: names, state, modes, copies, wrappers."""

from __future__ import annotations

import copy
import io
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.module import ReplayModule
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError

from .models import fresh, square
from .schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("one_thread")


def _replayed(name: str) -> tuple[nn.Module, ReplayModule, Any]:
    case, captured = fresh(name)
    schedule = random_schedule(captured.graph, random.Random(3))
    return case.model, replay(captured, plan_of(captured.graph, schedule)), case.batch(1)


def _loss(module: nn.Module, batch: Any) -> torch.Tensor:
    torch.manual_seed(5)
    loss: torch.Tensor = module(**batch) if isinstance(batch, dict) else module(*batch)
    return loss


@pytest.mark.parametrize("name", ["gpt", "cnn"])
def test_names_and_state_dict(name: str) -> None:
    """Parameters, buffers, modules and the state dict have the names of the original."""
    model, module, _ = _replayed(name)
    assert list(module.state_dict()) == list(model.state_dict())
    assert dict(module.named_parameters()) == dict(model.named_parameters())
    assert [n for n, _ in module.named_buffers()] == [n for n, _ in model.named_buffers()]
    assert [n for n, _ in module.named_modules()] == [n for n, _ in model.named_modules()]
    for key, value in module.state_dict().items():
        assert value.data_ptr() == model.state_dict()[key].data_ptr()


def test_state_dict_round_trip() -> None:
    """Loading a state dict changes the parameters that the step reads."""
    _, module, batch = _replayed("cnn")
    before = _loss(module, batch)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1)
    assert not torch.equal(_loss(module, batch), before)
    module.load_state_dict(state)
    assert torch.equal(_loss(module, batch), before)
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    stream.seek(0)
    module.load_state_dict(torch.load(stream))


def test_modes_follow_the_original() -> None:
    """`train`, `eval` and the flag go to the wrapped module, and to all children."""
    model, module, _ = _replayed("gpt")
    module.eval()
    assert not model.training
    assert not any(m.training for m in module.modules())
    model.train()
    assert module.training
    module.training = False
    assert not model.training


def test_attributes_and_methods_are_found() -> None:
    """What the replayed module does not have is the original's."""
    model, module, _ = _replayed("gpt")
    assert module.blocks is model.blocks
    assert module.norm.normalized_shape == (16,)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = module.nothing_like_it
    assert "blocks" in dir(module)
    assert "peak_bytes" in repr(module)


def test_sequential_can_be_indexed() -> None:
    """Container methods of the original work, and a module without them has none."""
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4), square)
    module = replay(
        captured, plan_of(captured.graph, random_schedule(captured.graph, random.Random(1)))
    )
    container: Any = module
    assert len(container) == 2
    assert isinstance(container[0], nn.Linear)
    assert [type(m) for m in container] == [nn.Linear, nn.Tanh]
    _, other, _ = _replayed("mlp")
    assert other
    assert not hasattr(type(other), "__len__")


@pytest.mark.parametrize("name", ["gpt", "cnn"])
def test_deepcopy_is_independent(name: str) -> None:
    """A deep copy replays with parameters of its own, tied ones still tied."""
    _, module, batch = _replayed(name)
    wanted = _loss(module, batch)
    twin = copy.deepcopy(module)
    assert torch.equal(_loss(copy.deepcopy(module), batch), wanted)
    mine, own = dict(module.named_parameters()), dict(twin.named_parameters())
    assert list(mine) == list(own)
    assert all(mine[n] is not own[n] for n in mine)
    _loss(twin, batch).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in module.parameters())
    assert all(p.grad is not None for p in twin.parameters())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.eval()
    assert module.training
    assert twin.captured.model is not module.captured.model


def test_pickle() -> None:
    """A replayed module with a loss that can be pickled comes back and replays."""
    _, module, batch = _replayed("cnn")
    wanted = _loss(module, batch)
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    twin = torch.load(stream, weights_only=False)
    assert isinstance(twin, ReplayModule)
    assert torch.equal(_loss(twin, batch), wanted)
    assert next(twin.parameters()) is not next(module.parameters())


def test_dtype_and_back() -> None:
    """`.double()` then `.float()` comes back to a module that replays."""
    _, module, batch = _replayed("mlp")
    wanted = _loss(module, batch)
    assert next(module.double().parameters()).dtype is torch.float64
    assert torch.equal(_loss(module.float(), batch), wanted)


def test_loss_module_with_parameters() -> None:
    """A loss that is a module, with parameters, buffers and a mode, is part of the step."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, out: torch.Tensor, batch: torch.Tensor) -> Any:
            self.calls.add_(1)  # type: ignore[operator]
            return ((out - batch) * self.scale).square().mean()

    found = []
    for replayed in (False, True):
        torch.manual_seed(0)
        net, loss_fn, x = nn.Linear(4, 4), Loss(), torch.ones(2, 4)
        if replayed:
            captured = capture(net, x, loss_fn)
            schedule = random_schedule(captured.graph, random.Random(1))
            module = replay(captured, plan_of(captured.graph, schedule))
            twin = copy.deepcopy(module)
            assert twin.captured.loss_fn is not loss_fn
        for _ in range(2):
            loss = module(x) if replayed else loss_fn(net(x), x)
            loss.backward()
        found.append([net.weight.grad, loss_fn.scale.grad, loss_fn.calls])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    loss_fn.eval()
    with pytest.raises(ReplayError, match="module loss_fn is in eval mode"):
        module(x)


def test_hooks_of_the_replayed_module() -> None:
    """Forward hooks registered on the replayed module run around the step."""
    _, module, batch = _replayed("mlp")
    seen: list[str] = []
    module.register_forward_pre_hook(lambda *_: seen.append("before"))
    module.register_forward_hook(lambda *_: seen.append("after"))
    _loss(module, batch)
    assert seen == ["before", "after"]


def test_code_is_readable_and_in_tracebacks() -> None:
    """The generated source is shown, and an error inside it points into it."""
    import linecache

    _, module, _ = _replayed("gpt")
    assert "def forward(inputs):" in module.code
    assert "linear(" in module.code
    file = module._wiring.code.forward.__code__.co_filename
    assert linecache.getline(file, 1) == "def forward(inputs):\n"


def _ddp(module: nn.Module) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, bucket_cap_mb=1)


def _fsdp(module: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=init_device_mesh("cpu", (1,)))  # type: ignore[return-value]


@pytest.mark.parametrize(("wrap", "name"), [(_ddp, "cnn"), (_fsdp, "gpt")])
def test_data_parallel(wrap: Any, name: str, tmp_path: Path) -> None:
    """Under DDP and FSDP three steps agree with the wrapped plain model, bit by bit."""
    from torch import distributed

    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        states = []
        for replayed in (False, True):
            case, _ = fresh(name)
            wrapped = wrap(_replayed(name)[1] if replayed else case.model)
            optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
            torch.manual_seed(0)
            batch = case.batch(1)
            for _ in range(3):
                out = wrapped(**batch) if isinstance(batch, dict) else wrapped(*batch)
                loss = out if replayed or case.loss_fn is None else case.loss_fn(out)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            state = wrapped.state_dict()
            states.append({k: getattr(v, "full_tensor", v.clone)() for k, v in state.items()})
        assert list(states[0]) == list(states[1])
        assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    finally:
        distributed.destroy_process_group()
