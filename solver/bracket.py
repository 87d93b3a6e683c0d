"""The smallest budget between two bounds: what was reached, and what is proven out of reach.

What was reached comes from search. That nothing in any order fits a smaller budget is proven by
the pebble game; in base order, by stage refinement: when one of its relaxations has no solution,
nothing within that budget exists. Budgets between the two are tried until they are close or time is
up. The cut that one budget ended with is where the next begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .assemble import BASE_ORDER_CLASS
from .compiled import compile_parts
from .control import Control
from .incumbent import Incumbent
from .job import Job
from .milp.backends import backend as backend_named
from .options import Techniques
from .pebbles import pebble_bound
from .plan import Stop
from .progress import Event, Silent, teller
from .refine import Refinement, refine
from .search.anneal import Search
from .search.deeper import Deeper
from .search.sequence import SequenceSearch
from .smallest import baseline_starts, single_op_bound, smallest_found

if TYPE_CHECKING:
    from .graph import Graph
    from .milp.problem import Backend
    from .progress import Progress
    from .search.anneal import Found

# Of the time, for a faster schedule with the peak that was reached; moves of that search.
FASTER, MOVES_PER_OP, MOST_MOVES = 0.1, 1000, 400_000
NEAR = 0.3  # of the interval: a budget so near the bound is worth trying again


@dataclass(frozen=True)
class Bracket:
    """Smallest budgets in bytes, resident bytes included.

    Attributes
    ----------
    found_bytes
        Peak of `computes`, the smallest that was reached in any order.
    bound_bytes
        No schedule of `bound_class` has a smaller peak.
    any_order_bound_bytes
        No schedule at all has a smaller peak: what single ops need, and their inputs.
    computes
        The executions that reach `found_bytes`.
    seconds
        That it took.
    stopped_by
        Why it ended.
    """

    found_bytes: int
    bound_bytes: int
    any_order_bound_bytes: int
    computes: tuple[int, ...]
    seconds: float
    stopped_by: Stop = Stop.DONE
    bound_class: str = BASE_ORDER_CLASS

    @property
    def gap(self) -> float:
        """(found - bound) / found; 0 where another order undercuts the bound."""
        return max(0.0, (self.found_bytes - self.bound_bytes) / max(1, self.found_bytes))


def bracket(
    graph: Graph,
    *,
    time_limit: float = 60.0,
    gap: float = 0.01,
    seed: int = 0,
    backend: str = "highs",
    order: str = "any",
    progress: Progress | None = None,
) -> Bracket:
    """Find the smallest budget, and prove how much smaller it could be.

    Parameters
    ----------
    time_limit, gap
        Stop after so many seconds, or when (found - bound) / found is at most this.
    order
        `any`, or `base`: what is found, too, keeps the base order.
    progress
        Told of every step; its times are bytes here.
    """
    compile_parts(None if progress is None else teller(progress), blocks=False)
    whole = Control(time_limit)
    control = whole.part(1.0 - FASTER)
    told = progress or Silent()
    solver = backend_named(backend)

    with whole.catching_interrupts():
        floor, _ = single_op_bound(graph, any_order=True)
        bound, _ = single_op_bound(graph)
        best = smallest_found(graph, seed, control.part(0.4), any_order=order == "any")
        reached = best.peak + graph.resident_bytes

        def tell(note: str) -> None:
            told.update(Event(control.elapsed, reached, bound, reached, note))

        def take(found: Found, note: str) -> None:
            nonlocal best, reached
            if (found.peak, found.time) < (best.peak, best.time):
                smaller = found.peak < best.peak
                best, reached = found, found.peak + graph.resident_bytes
                if smaller:
                    tell(note)

        tell("search")
        floor = max(floor, pebble_bound(graph, control.part(0.3), enough=reached))
        bound = max(bound, floor)
        tell("pebble game")
        deeper = Deeper(
            graph, seed, best, bound - graph.resident_bytes, control, any_order=order == "any"
        )
        state = Refinement()
        undecided: int | None = None
        while not control.over and reached - bound > gap * reached:
            if undecided is not None and undecided >= reached:
                undecided = None
            top = reached if undecided is None else undecided
            budget, share = (top + bound) // 2, 0.2
            if undecided is not None and top - bound <= NEAR * (reached - bound):
                budget, share = undecided, 0.5
            slot = control.part(share)
            possible, found = _fits(graph, budget, slot, seed, solver, state)
            if not possible:
                bound, undecided = budget + 1, None
                tell(f"nothing fits {budget} B")
            elif found is not None and found.peak < best.peak:
                undecided = None
                take(found, "integer program")
            elif budget == undecided and not slot.over:
                break  # nothing finer is known
            else:
                undecided = budget
            take(deeper.best, "search")
        take(deeper.finish(), "search")
        spare = whole.part(most=FASTER * time_limit)
        take(_faster(graph, best, spare, seed, any_order=order == "any"), "faster")
    stop = Stop.DONE
    if reached - bound > gap * reached:
        stop = Stop.INTERRUPTED if control.interrupt.is_set() else Stop.TIME_LIMIT
    return Bracket(
        found_bytes=reached,
        bound_bytes=bound,
        any_order_bound_bytes=floor,
        computes=best.computes,
        seconds=whole.elapsed,
        stopped_by=stop,
    )


def _faster(graph: Graph, best: Found, control: Control, seed: int, *, any_order: bool) -> Found:
    """The fastest schedule known with the peak of `best`: of heuristics, then by a search."""
    base_ns = int(graph.arrays.time.sum())
    incumbent = Incumbent(best.peak, base_ns, control, Silent())
    incumbent.offer(best, "search")
    reached = best.peak + graph.resident_bytes
    for name, found in baseline_starts(graph, Search(graph, seed), reached, control):
        incumbent.offer(found, name)

    def known() -> Found:
        return (incumbent.best if any_order else incumbent.in_order) or best

    found = SequenceSearch(graph, seed).improve(
        known().computes, best.peak, control=control, order=0.3 if any_order else 0.0,
        moves=min(MOST_MOVES, MOVES_PER_OP * len(graph.ops)),
    )  # fmt: skip
    incumbent.offer(found, "search")
    return known()


def _fits(
    graph: Graph,
    budget_bytes: int,
    control: Control,
    seed: int,
    backend: Backend,
    state: Refinement,
) -> tuple[bool, Found | None]:
    """Whether a budget is possible in base order as far as is known, and a schedule within it."""
    base_ns = int(graph.arrays.time.sum())
    incumbent = Incumbent(budget_bytes - graph.resident_bytes, base_ns, control, Silent())
    # Any schedule within the budget will do: its gap is below 1.
    job = Job(
        graph,
        budget_bytes,
        incumbent,
        Search(graph, seed),
        backend,
        gap=1.0,
        threads=1,
        seed=seed,
        techniques=Techniques(polish=False),
    )
    return refine(job, state), incumbent.best
