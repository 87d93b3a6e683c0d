"""Published heuristics, one file each, as schedules of any graph.

All have the signature `(graph, budget_bytes) -> Schedule | None`: the cheapest schedule that the
method finds within the budget (resident bytes included), else the one with the smallest peak, which
`budget_bytes=None` asks for directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import NotApplicableError as NotApplicableError
from .greedy import greedy as greedy
from .keep_everything import keep_everything as keep_everything
from .log_n import log_n as log_n
from .per_block import per_block as per_block
from .sqrt_n import sqrt_n as sqrt_n

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..graph import Graph
    from ..schedule import Schedule

BASELINES: dict[str, Callable[[Graph, int | None], Schedule | None]] = {
    "keep_everything": keep_everything,
    "sqrt_n": sqrt_n,
    "log_n": log_n,
    "per_block": per_block,
    "greedy": greedy,
}
