"""One of several processes: runs named checks and writes what came out, for test_distributed.

`python -m torch.distributed.run --standalone --nproc-per-node 2 -m
tests.runtime.distributed_worker FOLDER CHECK...`
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
import os
import random
import sys
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.fit import fit
from lowtide.runtime.ranks import everyones, odd_ones
from lowtide.runtime.replay import replay
from lowtide.runtime.run import Run
from lowtide.runtime.wiring import Wiring

from ..models import Gpt, square, tokens
from .schedules import plan_of, random_schedule, reordered

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
def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (distributed.get_world_size(),))


@functools.cache
def _captured(kind: str) -> Captured:
    torch.manual_seed(3)
    model: nn.Module = Gpt(depth=3) if kind == "gpt" else Branches()
    return capture(model, _batch(kind, 0))


def _batch(kind: str, seed: int) -> Any:
    seed = 100 * seed + distributed.get_rank()
    if kind == "gpt":
        return tokens(29, 3, 8)(seed)
    return (torch.randn(4, 48, generator=torch.Generator().manual_seed(seed)),)


def _plain(kind: str) -> nn.Module:
    return copy.deepcopy(_captured(kind).model)


def _replayed(
    kind: str, *, stages: int | None = None, seed: int = 5, accumulate: bool = False
) -> ReplayModule:
    captured = replace(_captured(kind), model=_plain(kind))
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


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    found: Any = tensor.detach()
    full = getattr(found, "full_tensor", None)
    return found.clone() if full is None else full()  # type: ignore[no-any-return]


def _train(module: nn.Module, kind: str, *, parts: int = 1, sync: Any = None) -> Record:
    """Three steps; losses, gradients, and parameters at the end."""
    torch.manual_seed(7 + distributed.get_rank())
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-2)
    found: Record = []
    for step in range(3):
        for part in range(parts):
            batch = _batch(kind, parts * step + part)
            with sync(module, part == parts - 1) if sync else torch.enable_grad():
                loss = module(**batch) if isinstance(batch, dict) else module(*batch)
                loss.backward()
            found.append((f"loss {step}", loss.detach().clone()))
        for name, p in module.named_parameters():
            if p.grad is not None:
                found.append((f"gradient {step} {name}", _whole(p.grad)))
        optimizer.step()
        optimizer.zero_grad()
    found += [(f"parameter {name}", _whole(p)) for name, p in module.named_parameters()]
    return found


def _same(kind: str, wrap: Wrap, *, module: nn.Module | None = None, **how: Any) -> str:
    """Train plain and replayed; the first difference, or nothing."""
    plain = _train(wrap(_plain(kind)), kind, **how)
    found = _train(wrap(_replayed(kind)) if module is None else module, kind, **how)
    if [name for name, _ in plain] != [name for name, _ in found]:
        return f"other names: {sorted({n for n, _ in plain} ^ {n for n, _ in found})[:6]}"
    return next(
        (n for (n, a), (_, b) in zip(plain, found, strict=True) if not torch.equal(a, b)), ""
    )


def _ddp(module: nn.Module, **options: Any) -> nn.Module:
    options.setdefault("bucket_cap_mb", 0.02)
    return DistributedDataParallel(module, **options)


def _root(module: nn.Module) -> nn.Module:
    found: Any = fully_shard(module, mesh=_mesh())
    return found  # type: ignore[no-any-return]


def _blocks(module: nn.Module, **options: Any) -> nn.Module:
    """One unit for each block, one for the rest."""
    blocks: Any = module.get_submodule("blocks" if hasattr(module, "blocks") else "layers")
    for block in blocks:
        fully_shard(block, mesh=_mesh(), **options)
    return _root(module)


def _parts(module: nn.Module) -> nn.Module:
    """Units inside units, and a unit for two modules at once."""
    blocks: Any = module.get_submodule("blocks")
    fully_shard(blocks[0].qkv, mesh=_mesh())
    fully_shard(blocks[0], mesh=_mesh(), reshard_after_forward=False)
    fully_shard([blocks[1], blocks[2]], mesh=_mesh())
    return _root(module)


def _only_blocks(module: nn.Module) -> nn.Module:
    blocks: Any = module.get_submodule("blocks")
    for block in blocks:
        fully_shard(block, mesh=_mesh())
    return module


def _no_sync(module: Any, last: bool) -> Any:
    return torch.enable_grad() if last else module.no_sync()


def _defer(module: Any, last: bool) -> Any:
    module.set_requires_gradient_sync(last)
    module.set_is_last_backward(last)
    return torch.enable_grad()


def check_ddp() -> str:
    """DDP with small buckets."""
    return _same("gpt", _ddp)


def check_ddp_options() -> str:
    """Static graph, gradients as views of buckets, unused parameters."""
    static = functools.partial(_ddp, static_graph=True, gradient_as_bucket_view=True)
    unused = functools.partial(_ddp, find_unused_parameters=True)
    return _same("gpt", static) or _same("branches", unused)


def check_ddp_accumulates() -> str:
    """Two batches a step, the first without synchronisation."""
    return _same("gpt", _ddp, parts=2, sync=_no_sync)


def check_accumulating_plans() -> str:
    """Plans for steps on existing gradients: DDP, and FSDP2 with and without blocks."""
    return "; ".join(
        f"{wrap.__name__}: {found}"
        for wrap, sync in ((_ddp, _no_sync), (_root, _defer), (_blocks, _defer), (_blocks, None))
        if (
            found := _same(
                "gpt", wrap, module=wrap(_replayed("gpt", accumulate=True)), parts=2, sync=sync
            )
        )
    )


def check_ddp_overlaps() -> str:
    """Buckets leave while later stages of the backward are still to run."""
    module = _replayed("branches", stages=6)
    events: list[str] = []

    def bucket(state: Any, bucket: Any) -> Any:
        events.append("bucket")
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0].div_(2))

    advance = Run.advance

    def noted(self: Run, stage: int) -> Any:
        events.append(f"stage {stage}")
        return advance(self, stage)

    wrapped = DistributedDataParallel(module, bucket_cap_mb=0.02, find_unused_parameters=True)
    bucket.__annotations__.clear()  # DDP reads them, and would want classes
    wrapped.register_comm_hook(None, bucket)
    Run.advance = noted  # type: ignore[method-assign]
    try:
        for _ in range(2):  # DDP orders its buckets anew after the first backward
            events.clear()
            wrapped(*_batch("branches", 0)).backward()
    finally:
        Run.advance = advance  # type: ignore[method-assign]
    stages = [place for place, event in enumerate(events) if event.startswith("stage")]
    early = sum(event == "bucket" for event in events[: stages[-1]])
    return "" if len(stages) >= 4 and early >= 2 else f"order of events: {events}"


def check_fsdp_root() -> str:
    """FSDP2 with the whole module as one unit."""
    return _same("gpt", _root)


def check_fsdp_blocks() -> str:
    """FSDP2 with a unit for each block, for two kinds of schedule."""
    moved = _blocks(_replayed("gpt", seed=6))
    return _same("gpt", _blocks) or _same("gpt", _blocks, module=moved)


def check_fsdp_shapes_of_units() -> str:
    """Nested units, grouped units, units without an outer one, units with frozen parameters."""
    return (
        _same("gpt", _parts)
        or _same("gpt", _only_blocks)
        or _same("branches", _blocks)
        or _same("gpt", functools.partial(_blocks, reshard_after_forward=False))
    )


def check_fsdp_on_the_original() -> str:
    """Sharding the wrapped model shards the replayed module."""
    module = _replayed("gpt")
    _blocks(module.captured.model)
    return _same("gpt", _blocks, module=module)


def check_fsdp_accumulates() -> str:
    """Two batches a step, the first without reduction."""
    return _same("gpt", _blocks, parts=2, sync=_defer)


def check_fsdp_warns() -> str:
    """Gradients that are kept whole between two backwards exceed a budget: said once."""
    found = []
    for wrap in (_root, _blocks):
        module = _replayed("gpt")
        tight = msgspec.structs.replace(module.plan, budget_bytes=module.peak_bytes)
        sharded = wrap(replay(module.captured, tight))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for part in range(3):
                with _defer(sharded, False):
                    sharded(**_batch("gpt", part)).backward()
        found.append(sum("gradients that are there already" in str(w.message) for w in said))
    return "" if found == [1, 1] else f"warned {found} times"


def check_fsdp_new_calls() -> str:
    """New kinds of calls: planned if there is one unit, refused by name if blocks are sharded."""
    rank_batch = _batch("gpt", 0)
    two = {name: value[:2] for name, value in rank_batch.items()}
    words = "no plan can be made while children are sharded"

    def fitted(shard: Wrap) -> Any:
        return shard(fit(_plain("gpt"), rank_batch, memory_budget="1GiB", times="roofline"))

    whole, blocks, early, late = map(fitted, (_root, _blocks, _blocks, _root))
    whole(**two).backward()
    blocks(**rank_batch).backward()
    return "; ".join(
        filter(
            None,
            (
                _error(lambda: blocks(**two), words),
                _error(lambda: blocks.prepare(two), words),
                _error(lambda: early.prepare(two), words),
                _error(lambda: late.prepare(two), "its parameters are gathered in a call"),
            ),
        )
    )


def check_fsdp_frees() -> str:
    """A block's parameters are gathered only while a part of the step uses them."""
    module = _replayed("gpt")
    _blocks(module)
    module(**_batch("gpt", 0)).backward()
    module(**_batch("gpt", 1)).backward()
    wiring: Wiring = module.__dict__["_sharded"]
    units: Any = wiring.units
    state = [unit.state for unit in units._units]
    gathered: list[tuple[str, int]] = []
    reduce, gather = type(units).reduce, type(units).gather_again

    def held() -> int:
        groups = [g for s in state for g in getattr(s, "_fsdp_param_groups", None) or [
            s._fsdp_param_group]]  # fmt: skip
        return sum(g.is_unsharded for g in groups)

    def noted_reduce(self: Any, number: int) -> None:
        reduce(self, number)
        gathered.append((f"reduce {number}", held()))

    def noted_gather(self: Any, number: int) -> None:
        gather(self, number)
        gathered.append((f"gather {number}", held()))

    loss = module(**_batch("gpt", 0))
    after_forward = held()
    type(units).reduce, type(units).gather_again = noted_reduce, noted_gather
    try:
        loss.backward()
    finally:
        type(units).reduce, type(units).gather_again = reduce, gather
    names = [name for name, _ in gathered]
    early = [n for n in names if n.startswith("reduce")]
    fine = after_forward == 0 and held() == 0 and len(early) >= 2
    return "" if fine else f"after forward {after_forward}, after backward {held()}, {gathered}"


def check_fsdp_evaluates() -> str:
    """Without gradients a sharded module runs the plain model."""
    plain, module = _blocks(_plain("gpt")), _blocks(_replayed("gpt"))
    batch = _batch("gpt", 0)
    for one in (plain, module):
        torch.manual_seed(1)
        one(**batch).backward()
    losses = []
    for one in (plain, module):
        torch.manual_seed(1)
        with torch.no_grad():
            losses.append(one.eval()(**batch))
    return "" if torch.equal(*losses) else "another loss"


def check_fsdp1_one_unit() -> str:
    """FSDP1 with original parameters and one unit."""
    wrap = functools.partial(
        FullyShardedDataParallel, use_orig_params=True, device_id=torch.device("cpu")
    )
    plain, found = wrap(_plain("gpt")), wrap(_replayed("gpt"))
    for step in range(2):
        losses = []
        for module in (plain, found):
            torch.manual_seed(step)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            loss = module(**_batch("gpt", step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        if not torch.equal(*losses):
            return f"another loss in step {step}"
    pairs = zip(plain.parameters(), found.parameters(), strict=True)
    return "" if all(torch.equal(a, b) for a, b in pairs) else "other parameters"


def _error(call: Callable[[], Any], words: str) -> str:
    """Nothing if the call raises with these words in one line."""
    try:
        call()
    except Exception as error:
        text = str(error)
        return "" if words in text and "\n" not in text else f"{type(error).__name__}: {text}"
    return f"no error with {words!r}"


class Talks(nn.Module):
    """A forward that communicates."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        x = self.layer(x)
        if self.how == "function":
            from torch.distributed import _functional_collectives as functional

            collectives: Any = functional
            return collectives.all_reduce(x, "sum", distributed.group.WORLD).sum()  # type: ignore[no-any-return]
        if self.how == "autograd":
            from torch.distributed.nn.functional import all_reduce as summed

            return summed(x).sum()  # type: ignore[no-any-return, no-untyped-call]
        y = x.detach().clone()
        distributed.all_reduce(y)
        return (x * y).sum()


def check_refusals() -> str:
    """What cannot be done is refused by name, before anything hangs."""
    tensor = torch.ones(2, 4)
    batch = _batch("gpt", 0)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    cast = _blocks(_replayed("gpt"), mp_policy=mixed)
    parallel = _replayed("branches")
    weight = parallel.layers[0].weight
    parallel.layers[0].weight = nn.Parameter(distribute_tensor(weight.data, _mesh(), [Shard(0)]))
    flat = FullyShardedDataParallel(_replayed("gpt"), device_id=torch.device("cpu"))
    norm = nn.Sequential(nn.SyncBatchNorm(4))
    found = [
        _error(lambda: capture(_ddp(_plain("gpt")), batch), "capture its .module"),
        _error(lambda: capture(_root(_plain("gpt")), batch), "capture the model first"),
        _error(
            lambda: capture(
                FullyShardedDataParallel(_plain("gpt"), device_id=torch.device("cpu")), batch
            ),
            "(FSDP1)",
        ),
        _error(lambda: cast(**batch), "MixedPrecisionPolicy"),
        _error(lambda: parallel(*_batch("branches", 0)), "layers.0.weight is a DTensor"),
        _error(lambda: flat(**batch), "use_orig_params=True"),
        _error(lambda: capture(norm, tensor, square), "0 (SyncBatchNorm) communicates"),
        *(
            _error(lambda how=how: capture(Talks(how), tensor), "communicates")  # type: ignore[misc]
            for how in ("function", "autograd", "in place")
        ),
    ]
    return "; ".join(filter(None, found))


def check_other_plan() -> str:
    """Processes with different plans are refused when the blocks are sharded."""
    module = _blocks(_replayed("gpt", seed=5 + 2 * distributed.get_rank()))
    return _error(lambda: module(**_batch("gpt", 0)), "rank 1 replay another plan than rank 0")


def check_one_plan() -> str:
    """All processes replay the plan and the costs of the first, which alone measures and solves."""
    called: list[str] = []
    fitting: Any = sys.modules["lowtide.runtime.fit"]
    planning: Any = sys.modules["lowtide.runtime.plan_cache"]
    solve, with_times = planning.solve, fitting.with_times

    def noted_solve(graph: Any, budget: Any, **how: Any) -> Any:
        called.append("solve")
        return solve(graph, budget, **{**how, "method": "greedy"})

    def noted_times(captured: Any, times: str) -> Any:
        called.append(times)
        return with_times(captured, "roofline")

    rank, batch = distributed.get_rank(), _batch("gpt", 0)
    fewer = {name: value[: 3 - rank] for name, value in batch.items()}
    two = {name: value[:2] for name, value in batch.items()}

    def fitted(batch: Any = batch, budget: str | int = "70%", **how: Any) -> ReplayModule:
        return fit(_plain("gpt"), batch, memory_budget=budget, **how)

    planning.solve, fitting.with_times = noted_solve, noted_times
    try:
        module = fitted(shapes=[two])
        difference = _same("gpt", _blocks, module=_blocks(module))
        module(**two).backward()
        small = _error(lambda: fitted(budget=1000), "1000 B")
        shapes = _error(lambda: fitted(fewer), "another step than rank 0")
        broken = _error(
            lambda: fitted({} if rank else batch),
            "missing" if rank else "rank 1 cannot capture the step",
        )
        alone = fitted(group=None)
    finally:
        planning.solve, fitting.with_times = solve, with_times
    found = everyones((module.plan.steps, module.captured.graph.ops, module.plan.graph_hash))
    if odd_ones(found):
        return "other plans or costs"
    wanted = ["measured", "solve"] * 3 + ["measured"] if rank == 0 else ["measured", "solve"]
    if called != wanted or not module.plan.schedule.recomputes() or not alone.plan.steps:
        return f"called {called}, wanted {wanted}"
    return difference or small or shapes or broken


def main(folder: str, names: list[str]) -> None:
    """Run the checks in the order given, the same in all processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=150))
    os.environ["LOWTIDE_CACHE_DIR"] = f"{folder}/cache{distributed.get_rank()}"
    results = {}
    for name in names:
        try:
            results[name] = globals()[f"check_{name}"]()
        except Exception:
            results[name] = traceback.format_exc()
        path = Path(folder) / f"rank{distributed.get_rank()}.json"
        path.write_text(json.dumps(results), encoding="utf-8")
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
