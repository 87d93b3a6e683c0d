"""Agreement between the processes of a group: on one plan, and on who failed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...frontends.torch.processes import distributed
from ...solver.errors import CaptureError, LowtideError, ReplayError
from ...solver.graph import Graph
from ...solver.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ...frontends.torch.captured import Captured

    Group = torch.distributed.ProcessGroup | Literal["default"] | None


def is_first() -> bool:
    """Whether this is the first process, or the only one."""
    dist = distributed()
    return dist is None or dist.get_rank() == 0


def everyones(value: Any, group: Any = None) -> list[tuple[int, Any]]:
    """Global rank and value of each process of `group` (None: all); all must call it."""
    dist = distributed()
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return list(zip(ranks_of(group), values, strict=True))


def ranks_of(group: Any = None) -> list[int]:
    """Global ranks of the processes of a group, in its order."""
    dist = distributed()
    return list(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))


def odd_ones(values: Sequence[tuple[int, Any]]) -> list[int]:
    """Ranks whose value is not that of the first."""
    return [rank for rank, value in values if value != values[0][1]]


def named(ranks: Sequence[int]) -> str:
    """`rank 1` or `ranks 1, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def agree_on_plan(digest: str, group: Any) -> None:
    """Refuse a group whose processes replay different plans.

    Raises
    ------
    ReplayError
        In every process, naming the ranks that differ from the first one.
    """
    values = everyones(digest, group)
    odd = odd_ones(values)
    if odd:
        raise ReplayError(
            f"{named(odd)} replay another plan than rank {values[0][0]}, so sharded parameters "
            "would be gathered in another order: use lowtide.fit in all processes at once, or "
            "replay one plan file everywhere"
        )


def in_group(group: Group) -> bool:
    """Whether there are other processes to plan with."""
    dist = distributed()
    members = None if group == "default" else group
    return dist is not None and group is not None and dist.get_world_size(members) > 1


def plan_together(
    start: Callable[[], Captured],
    finish: Callable[[Captured], tuple[Captured, Plan]],
    group: Group = "default",
) -> tuple[Captured, Plan]:
    """One plan for all processes of a group, made by its first one.

    Every process captures; the first one measures and solves; the others get its graph and plan.
    What fails in one process is raised in all, so that none waits for ever.

    Parameters
    ----------
    start
        Captures the step without costs.
    finish
        Adds costs and plans; called in the first process only.
    group
        A process group; "default": the default group if there is one; None: every process plans by
        itself. All processes of the group must call this.

    Raises
    ------
    CaptureError
        If a process cannot capture the step, or captures another one than the first process.
    LowtideError
        What planning raised in the first process.
    """
    if not in_group(group):
        return finish(start())
    dist = distributed()
    members = None if group == "default" else group
    captured = failure = None
    try:
        captured = start()
        said = ("", captured.graph.structure_hash, len(captured.graph.ops))
    except Exception as error:
        failure, said = error, (str(error) or type(error).__name__, "", 0)
    values = everyones(said, members)
    if failure is not None:
        raise failure
    assert captured is not None
    for rank, (text, _, _) in values:
        if text:
            raise CaptureError(f"rank {rank} cannot capture the step: {text}")
    odd = odd_ones(values)
    if odd:
        counts = ", ".join(f"{count} ops on rank {rank}" for rank, (_, _, count) in values)
        raise CaptureError(
            f"{named(odd)} captured another step than rank {values[0][0]} ({counts}): one plan "
            "needs the same model, modes and batch shape everywhere; group= names the processes "
            "that share one, group=None lets each plan for itself"
        )
    leader = values[0][0]
    message: list[Any] = [None]
    if dist.get_rank() == leader:
        try:
            captured, plan = finish(captured)
            message = [(msgspec.json.encode(captured.graph), msgspec.json.encode(plan))]
        except Exception as error:
            dist.broadcast_object_list([_portable(error, leader)], src=leader, group=members)
            raise
    dist.broadcast_object_list(message, src=leader, group=members)
    if isinstance(message[0], Exception):
        raise message[0]
    if dist.get_rank() == leader:
        return captured, plan
    graph = msgspec.json.decode(message[0][0], type=Graph)
    graph = msgspec.structs.replace(
        graph, meta={**graph.meta, "device": captured.graph.meta["device"]}
    )
    plan = msgspec.json.decode(message[0][1], type=Plan)
    return replace(captured, program=replace(captured.program, graph=graph)), plan


def _portable(error: Exception, rank: int) -> Exception:
    """An error that can be sent to other processes and says where it came from."""
    if isinstance(error, LowtideError):
        return error
    return LowtideError(f"planning failed on rank {rank}: {type(error).__name__}: {error}")
