"""What the parts of one solve share: the question, the means, and what was found so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import EVERYTHING, Techniques

if TYPE_CHECKING:
    from collections.abc import Callable

    from .graph import Graph
    from .incumbent import Incumbent
    from .milp.problem import Backend
    from .search.anneal import Search


@dataclass(frozen=True, eq=False)
class Job:
    """One solve.

    Attributes
    ----------
    graph, budget_bytes
        The question; resident bytes are part of the budget.
    incumbent
        The best schedules and the bound, with the clock.
    search
        Local search over keep rules of the graph.
    backend, threads
        Solver of integer programs, and its threads.
    gap
        (time - bound) / time at which the solve ends.
    seed
        Of everything random.
    any_order
        Whether ops may change places.
    moves
        Of the sequence search; None: as many as time allows.
    techniques
        What is used at all.
    spare
        Whether an integer program may go on in a thread beside the others; asked when it would.
        None: never.
    """

    graph: Graph
    budget_bytes: int
    incumbent: Incumbent
    search: Search
    backend: Backend
    gap: float
    threads: int
    seed: int
    any_order: bool = True
    moves: int | None = None
    techniques: Techniques = EVERYTHING
    spare: Callable[[], bool] | None = None
