"""Checks of FSDP in several processes, run by `worker`."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay

from .setup import (
    batch_of,
    deferring,
    error_with,
    one_unit,
    only_block_units,
    plain_model,
    replayed_model,
    same_as_plain,
    units_by_block,
    units_by_part,
)

if TYPE_CHECKING:
    from lowtide.runtime.wiring import Wiring

    from .setup import Wrap


def check_fsdp_root() -> str:
    """FSDP2 with the whole module as one unit."""
    return same_as_plain("gpt", one_unit)


def check_fsdp_blocks() -> str:
    """FSDP2 with a unit for each block, for two kinds of schedule."""
    moved = units_by_block(replayed_model("gpt", seed=6))
    return same_as_plain("gpt", units_by_block) or same_as_plain(
        "gpt", units_by_block, module=moved
    )


def check_fsdp_shapes_of_units() -> str:
    """Nested units, grouped units, units without an outer one, units with frozen parameters."""
    return (
        same_as_plain("gpt", units_by_part)
        or same_as_plain("gpt", only_block_units)
        or same_as_plain("branches", units_by_block)
        or same_as_plain("gpt", functools.partial(units_by_block, reshard_after_forward=False))
    )


def check_fsdp_on_the_original() -> str:
    """Sharding the wrapped model shards the replayed module."""
    module = replayed_model("gpt")
    units_by_block(module.captured.model)
    return same_as_plain("gpt", units_by_block, module=module)


def check_fsdp_accumulates() -> str:
    """Two batches a step, the first without reduction."""
    return same_as_plain("gpt", units_by_block, parts=2, sync=deferring)


def check_fsdp_warns() -> str:
    """Gradients that are kept whole between two backwards exceed a budget: said once."""
    found = []
    for wrap in (one_unit, units_by_block):
        module = replayed_model("gpt")
        tight = msgspec.structs.replace(module.plan, budget_bytes=module.peak_bytes)
        sharded = wrap(replay(module.captured, tight))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for part in range(3):
                with deferring(sharded, False):
                    sharded(**batch_of("gpt", part)).backward()
        found.append(sum("gradients that are there already" in str(w.message) for w in said))
    return "" if found == [1, 1] else f"warned {found} times"


def check_fsdp_new_calls() -> str:
    """New kinds of calls: planned if there is one unit, refused by name if blocks are sharded."""
    rank_batch = batch_of("gpt", 0)
    two = {name: value[:2] for name, value in rank_batch.items()}
    words = "no plan can be made while children are sharded"

    def fitted(shard: Wrap) -> Any:
        return shard(fit(plain_model("gpt"), rank_batch, memory_budget="1GiB", times="roofline"))

    whole, blocks, early, late = map(fitted, (one_unit, units_by_block, units_by_block, one_unit))
    whole(**two).backward()
    blocks(**rank_batch).backward()
    return "; ".join(
        filter(
            None,
            (
                error_with(lambda: blocks(**two), words),
                error_with(lambda: blocks.prepare(two), words),
                error_with(lambda: early.prepare(two), words),
                error_with(lambda: late.prepare(two), "its parameters are gathered in a call"),
            ),
        )
    )


def check_fsdp_frees() -> str:
    """A block's parameters are gathered only while a part of the step uses them."""
    module = replayed_model("gpt")
    units_by_block(module)
    module(**batch_of("gpt", 0)).backward()
    module(**batch_of("gpt", 1)).backward()
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

    loss = module(**batch_of("gpt", 0))
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
    plain, module = units_by_block(plain_model("gpt")), units_by_block(replayed_model("gpt"))
    batch = batch_of("gpt", 0)
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
    plain, found = wrap(plain_model("gpt")), wrap(replayed_model("gpt"))
    for step in range(2):
        losses = []
        for module in (plain, found):
            torch.manual_seed(step)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            loss = module(**batch_of("gpt", step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        if not torch.equal(*losses):
            return f"another loss in step {step}"
    pairs = zip(plain.parameters(), found.parameters(), strict=True)
    return "" if all(torch.equal(a, b) for a, b in pairs) else "other parameters"
