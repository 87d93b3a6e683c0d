"""Published methods, one file each, as schedules of any graph.

`BASELINES` are quick: `auto` starts from them. `PUBLISHED` holds the others, for comparison. All
have the signature `(graph, budget_bytes, control=None) -> Schedule | None`: the cheapest schedule
that the method finds within the budget (resident bytes included), else the one with the smallest
peak, which `budget_bytes=None` asks for directly. Once `control` is over the best so far is
returned. The work of `BASELINES` is about linear in the ops of the graph.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from ..graph import Graph, Op, Tensor
from .base import NotApplicableError as NotApplicableError
from .checkmate import checkmate as checkmate
from .checkmate import checkmate_lp as checkmate_lp
from .checkmate_heuristics import ap_greedy as ap_greedy
from .checkmate_heuristics import ap_sqrt_n as ap_sqrt_n
from .checkmate_heuristics import linearized_greedy as linearized_greedy
from .checkmate_heuristics import linearized_sqrt_n as linearized_sqrt_n
from .dtr import dtr as dtr
from .dtr import dtr_eq as dtr_eq
from .dtr import lru as lru
from .greedy import greedy as greedy
from .keep_everything import keep_everything as keep_everything
from .knapsack import knapsack_dp as knapsack_dp
from .knapsack import knapsack_greedy as knapsack_greedy
from .kusumoto import kusumoto as kusumoto
from .kusumoto import kusumoto_exact as kusumoto_exact
from .log_n import log_n as log_n
from .moccasin import moccasin as moccasin
from .per_block import per_block as per_block
from .revolve import revolve as revolve
from .rotor import rotor as rotor
from .sqrt_n import sqrt_n as sqrt_n
from .treewidth import pathwidth as pathwidth
from .treewidth import treewidth as treewidth

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

PUBLISHED: dict[str, Heuristic] = {
    "ap_sqrt_n": ap_sqrt_n,
    "linearized_sqrt_n": linearized_sqrt_n,
    "ap_greedy": ap_greedy,
    "linearized_greedy": linearized_greedy,
    "revolve": revolve,
    "rotor": rotor,
    "kusumoto": kusumoto,
    "kusumoto_exact": kusumoto_exact,
    "treewidth": treewidth,
    "pathwidth": pathwidth,
    "checkmate": checkmate,
    "checkmate_lp": checkmate_lp,
    "moccasin": moccasin,
    "knapsack_dp": knapsack_dp,
    "knapsack_greedy": knapsack_greedy,
    "dtr": dtr,
    "dtr_eq": dtr_eq,
    "lru": lru,
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
