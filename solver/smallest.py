"""The smallest budget: a bound from single ops, and the smallest peak that search reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .baselines import BASELINES, PUBLISHED, SAVERS, STARTS
from .baselines.base import NotApplicableError
from .control import Control
from .realise import Tables, saved_array
from .schedule import Schedule
from .search.anneal import Search
from .search.sequence import SequenceSearch
from .simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .graph import Graph
    from .search.anneal import Found

MOVES_PER_OP, MOST_MOVES = 1000, 400_000
SLOWEST = 100  # times the step: recomputing everything is not looked at beyond


def single_op_bound(graph: Graph, *, any_order: bool = False) -> tuple[int, int]:
    """Bytes (resident included) that no schedule can do without, and the op that needs them.

    While an op runs, its inputs, its outputs, its workspace and every output of the graph that was
    made before are in memory: in base order those of all ops that come before it, in any order
    those of the ops that it depends on. An input that the op may overwrite counts as if it did.
    """
    arrays = graph.arrays
    stays = arrays.output != 0
    own = np.zeros(len(graph.ops), dtype=np.int64)
    kept = np.zeros(len(graph.ops), dtype=np.int64)
    for op in range(len(graph.ops)):
        read, made = arrays.first_inputs(op), arrays.made(op)
        own[op] = arrays.size[read][~stays[read]].sum() + arrays.size[made].sum()
        own[op] += arrays.workspace[op] - arrays.credit[op]
        kept[op] = arrays.size[made][stays[made]].sum()
    if not any_order:
        during = own + np.cumsum(kept) - kept
        where = int(during.argmax()) if len(during) else -1
        return (int(during[where]) if len(during) else 0) + graph.resident_bytes, where
    best, where = int(kept.sum()), len(graph.ops) - 1  # at the end all outputs are there
    # What comes before in base order holds what an op depends on: most ops need no closer look.
    at_most = own + np.cumsum(kept) - kept
    if at_most.max(initial=0) <= best:
        return best + graph.resident_bytes, where
    makers = np.flatnonzero(kept)
    before = _outputs_before(graph, {int(op): 1 << place for place, op in enumerate(makers)})
    width = (len(makers) + 7) // 8
    for op in np.argsort(-at_most, kind="stable").tolist():
        if at_most[op] <= best:
            break
        bits = np.frombuffer(before[op].to_bytes(width, "little"), dtype=np.uint8)
        needed = np.unpackbits(bits, count=len(makers), bitorder="little")
        during_op = int(own[op] + kept[makers] @ needed)
        if during_op > best:
            best, where = during_op, op
    return best + graph.resident_bytes, where


def _outputs_before(graph: Graph, bit: dict[int, int]) -> list[int]:
    """Per op, as a bit set: the ops with a `bit` that it depends on."""
    arrays = graph.arrays
    before: list[int] = []
    for op in range(len(graph.ops)):
        mask = 0
        for p in set(arrays.producer[arrays.inputs(op)].tolist()):
            mask |= before[p] | bit.get(p, 0)
        before.append(mask)
    return before


def smallest_found(
    graph: Graph,
    seed: int,
    control: Control,
    *,
    any_order: bool = True,
    target: int | None = None,
    enough: int = 0,
) -> Found:
    """The schedule with the smallest peak that annealing finds from the best heuristic.

    The same seed gives the same schedule, time permitting: a budget that was found here once is
    found again.

    Parameters
    ----------
    any_order
        Whether ops may change places.
    target
        Bytes without resident ones to aim at, which moves are judged by; None: what single ops
        need.
    enough
        Stop at so many bytes, without resident ones, whatever is aimed at: up to there the search
        is the same for any value.
    """
    measure = Search(graph, seed)
    starts = [measure.measure(range(len(graph.ops)))]
    starts += [found for _, found in baseline_starts(graph, measure, None, control)]
    # Nothing of the forward phase is kept: every backward op has what it reads made anew.
    tables = Tables.of(graph)
    nothing = np.zeros(len(graph.tensors), dtype=np.bool_)
    slowest = SLOWEST * max(1, int(graph.arrays.time.sum()))
    starts.append(measure.measure(saved_array(tables, nothing, hold=0, slowest=slowest).tolist()))
    starts = [found for found in starts if found.computes]
    best = min(starts, key=lambda found: (found.peak, found.time))
    if target is None:
        target = single_op_bound(graph, any_order=any_order)[0] - graph.resident_bytes
    search = SequenceSearch(graph, seed)
    moves = min(MOST_MOVES, MOVES_PER_OP * len(graph.ops))
    # Hot enough to leave plateaus, bytes dear enough that time hardly counts; then gently on.
    for heat, order in ((30.0, 0.0), (10.0, 0.0), (10.0, 0.3), (1.0, 0.1)):
        if control.over or best.peak <= max(target, enough):
            break
        found = search.improve(
            best.computes, target, control=control, moves=moves, heat=heat,
            order=order if any_order else 0.0, price=10.0, enough=max(target, enough),
        )  # fmt: skip
        best = min(best, found, key=lambda one: (one.peak, one.time))
    return best


def baseline_starts(
    graph: Graph, search: Search, budget_bytes: int | None, control: Control
) -> Iterator[tuple[str, Found]]:
    """What quick methods make of the budget, within it or not.

    `SAVERS` are asked only where no other one meets the budget, or where none is given.
    """
    met = False
    for name in (*BASELINES, *STARTS, *SAVERS):
        if control.over or (met and name in SAVERS):
            return
        heuristic = BASELINES.get(name) or PUBLISHED[name]
        try:
            schedule = heuristic(graph, budget_bytes, control)
        except NotApplicableError:
            continue
        if schedule is not None:
            found = search.measure(schedule.computes())
            met |= budget_bytes is not None and found.peak + graph.resident_bytes <= budget_bytes
            yield name, found


def limiting_op(graph: Graph, computes: Sequence[int]) -> str:
    """Name of the op during which the peak of a sequence of executions occurs."""
    simulation = simulate(graph, Schedule.from_computes(graph, computes))
    op = graph.ops[simulation.ops[simulation.peak_position]]
    where = op.source or (f"in module {op.module}" if op.module else "")
    return f"{op.name} ({where})" if where else op.name


def smallest_budget(graph: Graph, *, time_limit: float = 20.0, seed: int = 0) -> int:
    """Smallest budget in bytes, resident bytes included, for which a schedule was found.

    An upper bound on what can be reached; `single_op_bound` is the lower one.
    """
    found = smallest_found(graph, seed, Control(time_limit))
    return found.peak + graph.resident_bytes
