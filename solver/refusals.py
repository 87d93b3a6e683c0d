"""What is raised if there is no plan: the budget that can be met, or that time was short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .control import Control
from .errors import InfeasibleError, NoPlanError
from .pebbles import pebble_bound
from .schedule import Schedule
from .simulate import simulate
from .smallest import limiting_op, smallest_found
from .units import doubt, format_bytes, format_percent_up

if TYPE_CHECKING:
    from .graph import Graph
    from .incumbent import Incumbent
    from .job import Job
    from .search.anneal import Found

# Of the time limit, for the smallest budget that a refusal names; and seconds.
REFUSAL_SHARE, LEAST_REFUSAL, MOST_REFUSAL = 0.2, 1.0, 12.0
# Seconds where nothing that is found can meet the budget: most of what search reaches it reaches
# in the first of them.
MOST_IF_PROVEN = 2.0
PEBBLES_SHARE, MOST_PEBBLES = 0.02, 1.0


def smallest_in_time(job: Job, floor: int, *, proven: bool = False) -> Found:
    """The schedule with the smallest peak that search reaches; `floor`: what one op needs.

    A solve at the budget that is named for it runs the same search for more than twice as long, so
    that it gets at least as far on a machine with more to do. Where it is `proven` that nothing
    meets the budget, only the name of another one is looked for, and not for long.
    """
    graph, outer = job.graph, job.incumbent.control
    most = MOST_IF_PROVEN if proven else MOST_REFUSAL
    seconds = min(most, max(LEAST_REFUSAL, REFUSAL_SHARE * outer.remaining))
    control = Control(seconds, interrupt=outer.interrupt)
    return smallest_found(
        graph, job.seed, control, any_order=job.any_order, target=floor - graph.resident_bytes
    )


def pebbles_in_time(job: Job) -> int:
    """Bytes that no schedule can do without, as far as is seen soon.

    A refusal depends on it, and no plan: it may take the clock where plans must not.
    """
    outer = job.incumbent.control
    seconds = min(MOST_PEBBLES, PEBBLES_SHARE * outer.remaining)
    control = Control(seconds, interrupt=outer.interrupt)
    return pebble_bound(job.graph, control, enough=job.budget_bytes + 1)


def infeasible(job: Job, found: Found, reason: str, *, proven: bool) -> InfeasibleError:
    """Nothing fits: say so, and the smallest budget that was `found`."""
    graph = job.graph
    budget_bytes, smallest = job.budget_bytes, found.peak + graph.resident_bytes
    setter = limiting_op(graph, found.computes)
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    room = peak - graph.resident_bytes
    share = f", or {format_percent_up(found.peak / room)} as a budget" if room > 0 else ""
    return InfeasibleError(
        f"no schedule fits {format_bytes(budget_bytes)} ({budget_bytes} B){reason}; the smallest "
        f"budget found is {format_bytes(smallest)} ({smallest} B{share}), set by {setter}"
        f"{doubt(budget_bytes, peak)}",
        smallest_bytes=smallest,
        limiting_op=setter,
        proven=proven,
    )


def none_in_time(
    graph: Graph, incumbent: Incumbent, budget_bytes: int, time_limit: float
) -> NoPlanError:
    """Nothing was found, and nothing is proven: say what was seen."""
    smallest: int | None = None
    seen = ""
    if incumbent.smallest is not None:
        smallest = incumbent.smallest.peak + graph.resident_bytes
        seen = f"; the smallest peak seen is {format_bytes(smallest)} ({smallest} B)"
    return NoPlanError(
        f"no schedule within {format_bytes(budget_bytes)} ({budget_bytes} B) found in "
        f"{time_limit:g} s{seen}: give more time or a larger budget",
        smallest_bytes=smallest,
    )
