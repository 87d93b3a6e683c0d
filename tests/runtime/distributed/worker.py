"""One of several processes: runs named checks and writes what came out, for test_distributed.

`python -m torch.distributed.run --standalone --nproc-per-node 2 -m
tests.runtime.distributed.worker FOLDER CHECK...`
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.distributed.ranks import everyones, odd_ones
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.step.run import Run

from ...models import square
from . import fsdp
from .setup import (
    batch_of,
    cpu_mesh,
    deferring,
    error_with,
    in_ddp,
    one_unit,
    plain_model,
    replayed_model,
    same_as_plain,
    units_by_block,
    with_decay,
    with_second_call,
    without_sync,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule


def check_ddp() -> str:
    """DDP with small buckets."""
    return same_as_plain("gpt", in_ddp)


def check_ddp_options() -> str:
    """Static graph, gradients as views of buckets, unused parameters."""
    static = functools.partial(in_ddp, static_graph=True, gradient_as_bucket_view=True)
    unused = functools.partial(in_ddp, find_unused_parameters=True)
    return same_as_plain("gpt", static) or same_as_plain("branches", unused)


def check_ddp_accumulates() -> str:
    """Two batches a step, the first without synchronisation."""
    return same_as_plain("gpt", in_ddp, parts=2, sync=without_sync)


def check_accumulating_plans() -> str:
    """Plans for steps on existing gradients: DDP, and FSDP2 with and without blocks."""
    return "; ".join(
        f"{wrap.__name__}: {found}"
        for wrap, sync in (
            (in_ddp, without_sync),
            (one_unit, deferring),
            (units_by_block, deferring),
            (units_by_block, None),
        )
        if (
            found := same_as_plain(
                "gpt", wrap, module=wrap(replayed_model("gpt", accumulate=True)), parts=2, sync=sync
            )
        )
    )


def check_losses_outside() -> str:
    """A loss of the parameters beside the module's, and two calls: sums begin with theirs."""
    return "; ".join(
        f"{wrap.__name__}, {more.__name__}: {found}"
        for wrap, more in (
            (in_ddp, with_decay),
            (in_ddp, with_second_call),
            (one_unit, with_decay),
            (one_unit, with_second_call),
            (units_by_block, with_decay),
            (units_by_block, with_second_call),
        )
        if (found := same_as_plain("gpt", wrap, more=more))
    )


def check_ddp_overlaps() -> str:
    """Buckets leave while later stages of the backward are still to run."""
    module = replayed_model("branches", stages=6)
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
            wrapped(*batch_of("branches", 0)).backward()
    finally:
        Run.advance = advance  # type: ignore[method-assign]
    stages = [place for place, event in enumerate(events) if event.startswith("stage")]
    early = sum(event == "bucket" for event in events[: stages[-1]])
    return "" if len(stages) >= 4 and early >= 2 else f"order of events: {events}"


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
    batch = batch_of("gpt", 0)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    cast = units_by_block(replayed_model("gpt"), mp_policy=mixed)
    parallel = replayed_model("branches")
    weight = parallel.layers[0].weight
    parallel.layers[0].weight = nn.Parameter(distribute_tensor(weight.data, cpu_mesh(), [Shard(0)]))
    flat = FullyShardedDataParallel(replayed_model("gpt"), device_id=torch.device("cpu"))
    norm = nn.Sequential(nn.SyncBatchNorm(4))
    found = [
        error_with(lambda: capture(in_ddp(plain_model("gpt")), batch), "capture its .module"),
        error_with(lambda: capture(one_unit(plain_model("gpt")), batch), "capture the model first"),
        error_with(
            lambda: capture(
                FullyShardedDataParallel(plain_model("gpt"), device_id=torch.device("cpu")), batch
            ),
            "(FSDP1)",
        ),
        error_with(lambda: cast(**batch), "MixedPrecisionPolicy"),
        error_with(lambda: parallel(*batch_of("branches", 0)), "layers.0.weight is a DTensor"),
        error_with(lambda: flat(**batch), "use_orig_params=True"),
        error_with(lambda: capture(norm, tensor, square), "0 (SyncBatchNorm) communicates"),
        *(
            error_with(lambda how=how: capture(Talks(how), tensor), "communicates")  # type: ignore[misc]
            for how in ("function", "autograd", "in place")
        ),
    ]
    return "; ".join(filter(None, found))


def check_other_plan() -> str:
    """Processes with different plans are refused when the blocks are sharded."""
    module = units_by_block(replayed_model("gpt", seed=5 + 2 * distributed.get_rank()))
    return error_with(
        lambda: module(**batch_of("gpt", 0)), "rank 1 replay another plan than rank 0"
    )


def check_one_plan() -> str:
    """All processes replay the plan and the costs of the first, which alone measures and solves."""
    called: list[str] = []
    fitting: Any = sys.modules["lowtide.runtime.plans.fit"]
    planning: Any = sys.modules["lowtide.runtime.plans.plan_cache"]
    solve, with_times = planning.solve, fitting.with_times

    def noted_solve(graph: Any, budget: Any, **how: Any) -> Any:
        called.append("solve")
        return solve(graph, budget, **{**how, "method": "greedy"})

    def noted_times(captured: Any, times: str, progress: Any = None) -> Any:
        called.append(times)
        return with_times(captured, "roofline", progress)

    rank, batch = distributed.get_rank(), batch_of("gpt", 0)
    fewer = {name: value[: 3 - rank] for name, value in batch.items()}
    two = {name: value[:2] for name, value in batch.items()}

    def fitted(batch: Any = batch, budget: str | int = "70%", **how: Any) -> ReplayModule:
        return fit(plain_model("gpt"), batch, memory_budget=budget, **how)

    planning.solve, fitting.with_times = noted_solve, noted_times
    try:
        module = fitted(shapes=[two])
        difference = same_as_plain("gpt", units_by_block, module=units_by_block(module))
        module(**two).backward()
        small = error_with(lambda: fitted(budget=1000), "1000 B")
        shapes = error_with(lambda: fitted(fewer), "another step than rank 0")
        broken = error_with(
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


def check(name: str) -> Callable[[], str]:
    """The function of a check, here or among those of FSDP."""
    found: Callable[[], str] = {**vars(fsdp), **globals()}[f"check_{name}"]
    return found


def main(folder: str, names: list[str]) -> None:
    """Run the checks in the order given, the same in all processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=150))
    os.environ["LOWTIDE_CACHE_DIR"] = f"{folder}/cache{distributed.get_rank()}"
    results = {}
    for name in names:
        try:
            results[name] = check(name)()
        except Exception:
            results[name] = traceback.format_exc()
        path = Path(folder) / f"rank{distributed.get_rank()}.json"
        path.write_text(json.dumps(results), encoding="utf-8")
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
