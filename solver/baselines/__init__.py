"""Published heuristics, one file each, as schedules of any graph.

All have the signature `(graph, budget_bytes, control=None) -> Schedule | None`: the cheapest
schedule that the method finds within the budget (resident bytes included), else the one with the
smallest peak, which `budget_bytes=None` asks for directly. Work is about linear in the ops of the
graph; once `control` is over the best so far is returned.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from ..graph import Graph, Op, Tensor
from .base import NotApplicableError as NotApplicableError
from .greedy import greedy as greedy
from .keep_everything import keep_everything as keep_everything
from .log_n import log_n as log_n
from .per_block import per_block as per_block
from .sqrt_n import sqrt_n as sqrt_n

if TYPE_CHECKING:
    from ..control import Control
    from ..schedule import Schedule


class Heuristic(Protocol):
    """A published heuristic."""

    def __call__(
        self, graph: Graph, budget_bytes: int | None, control: Control | None = None
    ) -> Schedule | None:
        """Plan `graph`."""


BASELINES: dict[str, Heuristic] = {
    "keep_everything": keep_everything,
    "sqrt_n": sqrt_n,
    "log_n": log_n,
    "per_block": per_block,
    "greedy": greedy,
}


@functools.cache
def compile_heuristics() -> None:
    """Compile, or load from numba's cache, what they run; the clock of a solve starts after."""
    chain = [Op(f"{i}", "", 1, (i - 1,) if i else (), (i,), phase="forward") for i in range(3)]
    border = Op("border", "", 0, (), (3,), recompute=False, phase="backward")
    backward = [Op(f"{i}", "", 1, (i - 1, 6 - i), (i,), phase="backward") for i in (4, 5)]
    tensors = tuple(Tensor(f"{i}", 1) for i in range(6))
    graph = Graph("warm-up", (*chain, border, *backward), tensors)
    for name in ("sqrt_n", "log_n", "greedy"):
        BASELINES[name](graph, None)
