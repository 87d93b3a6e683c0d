"""Models, wrappers and comparisons that the checks of several processes share."""

from __future__ import annotations

import copy
import functools
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.runtime.wiring import Wiring

from ...models import Gpt, square, tokens
from ..schedules import plan_of, random_schedule, reordered

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.module import ReplayModule

    Wrap = Callable[[nn.Module], nn.Module]

Record = list[tuple[str, torch.Tensor]]


class Branches(nn.Module):
    """A part that gets no gradient, and a frozen one; large enough for several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(8))
        self.unused = nn.Linear(3, 3)
        self.layers[2].bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Layer after layer; the mean square."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return square(x)


@functools.cache
def cpu_mesh() -> DeviceMesh:
    """All processes."""
    return init_device_mesh("cpu", (distributed.get_world_size(),))


@functools.cache
def captured_step(kind: str) -> Captured:
    """A small step of a kind, the same in every process."""
    torch.manual_seed(3)
    model: nn.Module = Gpt(depth=3) if kind == "gpt" else Branches()
    return capture(model, batch_of(kind, 0))


def batch_of(kind: str, seed: int) -> Any:
    """A batch of this process."""
    seed = 100 * seed + distributed.get_rank()
    if kind == "gpt":
        return tokens(29, 3, 8)(seed)
    return (torch.randn(4, 48, generator=torch.Generator().manual_seed(seed)),)


def plain_model(kind: str) -> nn.Module:
    """A model of its own, with the same parameters."""
    return copy.deepcopy(captured_step(kind).model)


def replayed_model(
    kind: str, *, stages: int | None = None, seed: int = 5, accumulate: bool = False
) -> ReplayModule:
    """A replay of its own, by a schedule drawn from `seed`."""
    captured = replace(captured_step(kind), model=plain_model(kind))
    if accumulate:
        captured = captured.accumulating()
    rng = random.Random(seed)
    make = random_schedule if seed % 2 else reordered
    plan = plan_of(captured.graph, make(captured.graph, rng))
    module = replay(captured, plan)
    if stages is not None:
        wiring = module._wiring
        module.__dict__["_wiring"] = Wiring(
            wiring.program, plan.schedule, stages=stages, behaviours=wiring.guards.behaviours
        )
    return module


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What a sharded tensor holds in all processes."""
    found: Any = tensor.detach()
    full = getattr(found, "full_tensor", None)
    return found.clone() if full is None else full()  # type: ignore[no-any-return]


def with_decay(module: nn.Module, loss: Any, _: Any) -> Any:
    """The loss, and one of all parameters: of their shards, where they are sharded."""
    shards = (getattr(p, "to_local", lambda p=p: p)() for p in module.parameters())
    return loss + sum(shard.sin().square().sum() for shard in shards) * 1e-2


def with_second_call(module: nn.Module, loss: Any, batch: Any) -> Any:
    """The loss, and that of another call."""
    return loss + (module(**batch) if isinstance(batch, dict) else module(*batch)) * 0.7


def train_record(
    module: nn.Module, kind: str, *, parts: int = 1, sync: Any = None, more: Any = None
) -> Record:
    """Three steps; losses, gradients, and parameters at the end; `more` adds to the loss."""
    torch.manual_seed(7 + distributed.get_rank())
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-2)
    found: Record = []
    for step in range(3):
        for part in range(parts):
            batch = batch_of(kind, parts * step + part)
            with sync(module, part == parts - 1) if sync else torch.enable_grad():
                loss = module(**batch) if isinstance(batch, dict) else module(*batch)
                loss = loss if more is None else more(module, loss, batch)
                loss.backward()
            found.append((f"loss {step}", loss.detach().clone()))
        for name, p in module.named_parameters():
            if p.grad is not None:
                found.append((f"gradient {step} {name}", whole_tensor(p.grad)))
        optimizer.step()
        optimizer.zero_grad()
    found += [(f"parameter {name}", whole_tensor(p)) for name, p in module.named_parameters()]
    return found


def same_as_plain(kind: str, wrap: Wrap, *, module: nn.Module | None = None, **how: Any) -> str:
    """Train plain and replayed; the first difference, or nothing."""
    plain = train_record(wrap(plain_model(kind)), kind, **how)
    found = train_record(wrap(replayed_model(kind)) if module is None else module, kind, **how)
    if [name for name, _ in plain] != [name for name, _ in found]:
        return f"other names: {sorted({n for n, _ in plain} ^ {n for n, _ in found})[:6]}"
    return next(
        (n for (n, a), (_, b) in zip(plain, found, strict=True) if not torch.equal(a, b)), ""
    )


def in_ddp(module: nn.Module, **options: Any) -> nn.Module:
    """In buckets so small that there are several."""
    options.setdefault("bucket_cap_mb", 0.02)
    return DistributedDataParallel(module, **options)


def one_unit(module: nn.Module) -> nn.Module:
    """FSDP2 with one unit."""
    found: Any = fully_shard(module, mesh=cpu_mesh())
    return found  # type: ignore[no-any-return]


def units_by_block(module: nn.Module, **options: Any) -> nn.Module:
    """One unit for each block, one for the rest."""
    blocks: Any = module.get_submodule("blocks" if hasattr(module, "blocks") else "layers")
    for block in blocks:
        fully_shard(block, mesh=cpu_mesh(), **options)
    return one_unit(module)


def units_by_part(module: nn.Module) -> nn.Module:
    """Units inside units, and a unit for two modules at once."""
    blocks: Any = module.get_submodule("blocks")
    fully_shard(blocks[0].qkv, mesh=cpu_mesh())
    fully_shard(blocks[0], mesh=cpu_mesh(), reshard_after_forward=False)
    fully_shard([blocks[1], blocks[2]], mesh=cpu_mesh())
    return one_unit(module)


def only_block_units(module: nn.Module) -> nn.Module:
    """FSDP2 of the blocks, without a unit around them."""
    blocks: Any = module.get_submodule("blocks")
    for block in blocks:
        fully_shard(block, mesh=cpu_mesh())
    return module


def without_sync(module: Any, last: bool) -> Any:
    """Where gradients of DDP stay until the last micro-batch."""
    return torch.enable_grad() if last else module.no_sync()


def deferring(module: Any, last: bool) -> Any:
    """The same for FSDP2."""
    module.set_requires_gradient_sync(last)
    module.set_is_last_backward(last)
    return torch.enable_grad()


def error_with(call: Callable[[], Any], words: str) -> str:
    """Nothing if the call raises with these words in one line."""
    try:
        call()
    except Exception as error:
        text = str(error)
        return "" if words in text and "\n" not in text else f"{type(error).__name__}: {text}"
    return f"no error with {words!r}"
