"""The smallest budget: a bound from single ops, and the smallest peak that search reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .baselines import BASELINES
from .baselines.base import NotApplicableError
from .control import Control
from .schedule import Schedule
from .search.anneal import Search
from .simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .graph import Graph
    from .search.anneal import Found

SEARCH_WORK = 60_000_000  # ops times moves


def single_op_bound(graph: Graph) -> tuple[int, int]:
    """Bytes (resident included) that no schedule in the base order can do without, and the op.

    While an op runs, its inputs, its outputs, its workspace and every output of the graph that came
    before are in memory.
    """
    arrays = graph.arrays
    pinned = 0
    best, where = 0, -1
    for op in range(len(graph.ops)):
        read, made = arrays.inputs(op), arrays.outputs(op)
        own = arrays.size[read][arrays.output[read] == 0].sum() + arrays.size[made].sum()
        during = int(own + arrays.workspace[op]) + pinned
        if during > best:
            best, where = during, op
        pinned += int(arrays.size[made][arrays.output[made] != 0].sum())
    return best + graph.resident_bytes, where


def smallest_found(graph: Graph, seed: int, control: Control, seconds: float = 20.0) -> Found:
    """The schedule with the smallest peak that annealing finds from the best heuristic.

    The same seed gives the same schedule, time permitting: a budget that was found here once is
    found again.
    """
    search = Search(graph, seed)
    starts = [search.measure(range(len(graph.ops)))]
    starts += [found for _, found in baseline_starts(graph, search, None, control)]
    best = min(starts, key=lambda found: (found.peak, found.time))
    floor, _ = single_op_bound(graph)
    target = floor - graph.resident_bytes
    moves = min(SEARCH_WORK // max(1, len(graph.ops)), 400 * len(search.movable))
    moves = max(2000, moves)
    for _ in range(2):
        if control.over:
            break
        _, found = search.improve(
            search.rule_of(best.computes), target, control=control, seconds=seconds / 2,
            moves=moves // 2, heat=1e-2,
        )  # fmt: skip
        if found is not None and found.peak < best.peak:
            best = found
    return best


def baseline_starts(
    graph: Graph, search: Search, budget_bytes: int | None, control: Control
) -> Iterator[tuple[str, Found]]:
    """What each baseline makes of the budget, within it or not."""
    for name, heuristic in BASELINES.items():
        if control.over:
            return
        try:
            schedule = heuristic(graph, budget_bytes, control)
        except NotApplicableError:
            continue
        if schedule is not None:
            yield name, search.measure(schedule.computes())


def limiting_op(graph: Graph, computes: Sequence[int]) -> str:
    """Name of the op during which the peak of a sequence of executions occurs."""
    simulation = simulate(graph, Schedule.from_computes(graph, computes))
    op = graph.ops[simulation.ops[simulation.peak_position]]
    return f"{op.name} ({op.source})" if op.source else op.name


def smallest_budget(graph: Graph, *, time_limit: float = 20.0, seed: int = 0) -> int:
    """Smallest budget in bytes, resident bytes included, for which a schedule was found.

    An upper bound on what can be reached; `single_op_bound` is the lower one.
    """
    found = smallest_found(graph, seed, Control(time_limit), time_limit)
    return found.peak + graph.resident_bytes
