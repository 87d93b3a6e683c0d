"""Agreement between the processes of a group: on a text, and on who failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence


def distributed() -> Any:
    """`torch.distributed` if a default process group exists here, else None."""
    module: Any = torch.distributed
    return module if module.is_available() and module.is_initialized() else None


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
