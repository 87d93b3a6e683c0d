"""Published methods, one file each, as schedules of any graph.

`BASELINES` are quick: `auto` starts from them. `PUBLISHED` holds the others, for comparison; `auto`
starts from those named in `STARTS`, too, and where memory is tight from `SAVERS`. All have the
signature `(graph, budget_bytes, control=None) -> Schedule | None`: the cheapest schedule that the
method finds within the budget (resident bytes included), else the one with the smallest peak, which
`budget_bytes=None` asks for directly. Once `control` is over the best so far is returned. The work
of all that `auto` starts from is about linear in the ops of the graph.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module
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


@dataclass(frozen=True)
class Lazy:
    """A heuristic that is imported when it first runs: some need CP-SAT or networkx."""

    module: str
    name: str

    def __call__(
        self, graph: Graph, budget_bytes: int | None, control: Control | None = None
    ) -> Schedule | None:
        """Plan `graph`."""
        heuristic: Heuristic = getattr(import_module(f".{self.module}", __name__), self.name)
        return heuristic(graph, budget_bytes, control)


_FILES = {
    "checkmate_heuristics": ("ap_sqrt_n", "linearized_sqrt_n", "ap_greedy", "linearized_greedy"),
    "revolve": ("revolve",),
    "rotor": ("rotor",),
    "kusumoto": ("kusumoto", "kusumoto_exact"),
    "treewidth": ("treewidth", "pathwidth"),
    "checkmate": ("checkmate", "checkmate_lp"),
    "moccasin": ("moccasin",),
    "knapsack": ("knapsack_dp", "knapsack_greedy"),
    "dtr": ("dtr", "dtr_eq", "lru"),
}
PUBLISHED: dict[str, Heuristic] = {
    name: Lazy(module, name) for module, names in _FILES.items() for name in names
}
# About linear in the ops, and at some budgets ahead of all of `BASELINES`.
STARTS = ("ap_greedy", "linearized_greedy", "rotor")
SAVERS = ("revolve",)  # reaches the least memory, at many recomputations


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
    for name in (*STARTS, *SAVERS):
        PUBLISHED[name](graph, None)
