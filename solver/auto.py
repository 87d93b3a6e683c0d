"""The method `auto`: search for schedules on one core, proofs and integer programs on the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .refine import refine
from .search.beside import Beside
from .smallest import smallest_found

if TYPE_CHECKING:
    from .graph import Graph
    from .incumbent import Incumbent
    from .milp.problem import Backend
    from .options import Techniques
    from .refine import Refinement
    from .search.anneal import Found, Search

FIRST_WORK = 15_000_000  # ops times moves of the search before the first integer program


def auto(
    graph: Graph,
    search: Search,
    starts: list[Found],
    incumbent: Incumbent,
    budget_bytes: int,
    *,
    gap: float,
    backend: Backend,
    threads: int,
    seed: int,
    any_order: bool,
    moves: int | None,
    techniques: Techniques,
    refinement: Refinement | None,
) -> bool:
    """Fill `incumbent`; False if no schedule in the base order meets the budget.

    With one thread a first cycle of the sequence search comes before the integer programs, with
    more it runs beside them until they are done, and for some cycles at least. A number of moves
    is always made in full.
    """
    if incumbent.gap <= gap:
        return True
    first = incumbent.best or min(starts, key=lambda found: found.peak)
    beside = Beside(graph, incumbent, seed, [first, starts[0]], any_order=any_order, moves=moves)
    # Other orders gain more where no backward phase mirrors the forward one.
    cycles = 1 if graph.boundary < len(graph.ops) or not any_order else 3
    if techniques.sequences and threads > 1:
        beside.start()
    elif techniques.sequences:
        beside.run(cycles)
    try:
        possible = _in_order(
            graph, search, starts, incumbent, budget_bytes, gap=gap, backend=backend,
            threads=max(1, threads - 1), seed=seed, techniques=techniques, refinement=refinement,
        )  # fmt: skip
    finally:
        beside.stop(after_cycles=cycles)
    if incumbent.best is None and any_order:
        found = smallest_found(graph, seed, incumbent.control, target=incumbent.room)
        incumbent.offer(found, "smallest peak")
    return possible


def _in_order(
    graph: Graph,
    search: Search,
    starts: list[Found],
    incumbent: Incumbent,
    budget_bytes: int,
    *,
    gap: float,
    backend: Backend,
    threads: int,
    seed: int,
    techniques: Techniques,
    refinement: Refinement | None,
) -> bool:
    """A short search over keep rules from the best heuristic, then refinement."""
    first = incumbent.in_order or min(starts, key=lambda found: found.peak)
    _, found = search.improve(
        search.rule_of(first.computes), incumbent.room, control=incumbent.control,
        seconds=0.1 * max(incumbent.control.remaining, 10.0),
        moves=max(2000, min(FIRST_WORK // len(graph.ops), 200 * len(search.movable))),
    )  # fmt: skip
    incumbent.offer(found, "local search")
    if incumbent.in_order is None:  # a tight budget: aim at the peak alone
        found = smallest_found(
            graph, seed, incumbent.control.part(0.4), any_order=False, target=incumbent.room
        )
        incumbent.offer(found, "smallest peak")
    if incumbent.gap <= gap:
        return True
    return refine(graph, budget_bytes, incumbent, search, backend=backend, gap=gap,
                  threads=threads, seed=seed, techniques=techniques, state=refinement)  # fmt: skip
