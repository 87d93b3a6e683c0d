"""One model: every rival, and lowtide at its peak and at its time."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING

import msgspec
import torch

import lowtide
from lowtide.solver.units import format_bytes

from .between import aim
from .measure import Bench
from .plans import Frontier
from .rivals import BLOCK, BUDGET, SELECTIVE, Contender, memory_budget, per_block, selective
from .rows import Planned, Result, Rival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

    from .models import Subject

SETTINGS = (0.9, 0.7, 0.5, 0.3, 0.1)
ROUNDS = 8  # of looking between plans that are fast enough and plans that are not
FEW = 4  # timed steps of what is only to be chosen from
BEYOND = 0.2  # plans that are predicted to be this much slower than every rival are not measured
SAVED = 0.1  # of the plain peak, at least, for a budget that is shown


def study(
    name: str,
    subject: Subject,
    *,
    settings: Sequence[float] = SETTINGS,
    repeats: int = 7,
    time_limit: float = 6.0,
    told: Callable[[str], None],
) -> Result:
    """Measure one model.

    Parameters
    ----------
    settings
        Of PyTorch's memory budget.
    repeats
        Timed steps of each contender.
    time_limit
        Seconds for each plan.
    told
        Hears of progress.
    """
    torch.set_num_threads(1)
    lowtide.keep_freed_memory()
    model, batch = subject.make()
    bench = Bench(Contender(model, model), batch)
    told(f"{name}: plain, {format_bytes(bench.plain_bytes)}")
    captured = lowtide.capture(model, batch, times="calibrated")
    frontier = Frontier(captured.graph, time_limit)
    graph = captured.graph
    told(f"{name}: {len(graph.ops)} ops, {graph.meta.get('profile', '')}")
    contenders, rivals = _rivals(subject, bench, model, settings, told)
    # A first look at times: which budget is best, and what lowtide has to be as fast as.
    replays = {_key(frontier.unplanned): _replay(captured, frontier.unplanned)}
    ratios, _ = bench.ratios({**contenders, **replays}, FEW)
    unplanned = ratios[_key(frontier.unplanned)]
    rivals = {key: _timed(rival, ratios.get(key, 0.0)) for key, rival in rivals.items()}
    budgets = [rival for rival in rivals.values() if rival.name == BUDGET]
    chosen = _chosen(rivals, bench.plain_bytes)
    at_peak: dict[str, lowtide.Plan] = {}
    for key, rival in chosen.items():
        if rival.outcome is None:
            continue
        plan = frontier.within(rival.outcome.peak_bytes)
        if plan is not None:
            at_peak[key] = plan
        told(f"{name}: at the peak of {key}: {_words(plan)}")
    longest = 0.0
    for key, rival in chosen.items():
        if rival.outcome is not None:
            wanted = rival.outcome.ratio / unplanned - 1.0
            longest = max(longest, wanted)
            plan = frontier.within_time(wanted)
            told(f"{name}: in the time of {key}: {_words(plan)}")
    # All that the searches came across: what is predicted to be too slow may be measured not to be.
    curve = frontier.curve(longest + BEYOND)
    plans = [*curve, frontier.unplanned, *at_peak.values()]
    measured = {_key(plan): plan for plan in plans}
    replays = {key: _replay(captured, plan) for key, plan in measured.items()}
    outcomes = {key: bench.outcome(replay) for key, replay in replays.items()}
    final = {key: contenders[key] for key in chosen if key in contenders}
    # Predictions are off by a few percent: what is fast enough is looked for by measured times.
    quick, _ = bench.ratios({**final, **replays}, FEW)
    limits = [quick[key] for key in final]
    at = {outcomes[key].peak_bytes: quick[key] for key in replays}
    for room, plan in _between(frontier, at, limits):
        key = _key(plan)
        if key not in measured:
            measured[key], replays[key] = plan, _replay(captured, plan)
            outcomes[key] = bench.outcome(replays[key])
            quick |= bench.ratios({key: replays[key]}, FEW)[0]
            told(f"{name}: between: {_words(plan)}, x{quick[key]:.2f}")
        at[room] = at[outcomes[key].peak_bytes] = quick[key]
    told(f"{name}: timing {len(final)} rivals and {len(replays)} plans")
    ratios, milliseconds = bench.ratios({**final, **replays}, repeats)
    planned = {
        key: Planned(
            msgspec.structs.replace(outcomes[key], ratio=ratios[key]),
            frontier.room(plan), plan.overhead, plan.gap, plan.solve_seconds,
            plan.overhead_over_plain,
        )
        for key, plan in measured.items()
    }  # fmt: skip
    found = []
    for key, rival in chosen.items():
        timed = _timed(rival, ratios.get(key, 0.0))
        plan = at_peak.get(key)
        found.append(
            msgspec.structs.replace(
                timed,
                same_peak=None if plan is None else planned[_key(plan)],
                same_time=_smallest(timed, list(planned.values())),
            )
        )
    finals = {rival.setting: rival for rival in found if rival.name == BUDGET}
    budgets = [_alone(finals.get(rival.setting, rival)) for rival in budgets]
    del contenders, final, replays
    torch._dynamo.reset()
    gc.collect()
    return Result(
        name, subject.title, len(graph.ops), bench.plain_bytes, milliseconds,
        planned[_key(frontier.unplanned)], found, budgets,
        sorted(planned.values(), key=lambda one: one.outcome.peak_bytes),
    )  # fmt: skip


def _rivals(
    subject: Subject,
    bench: Bench,
    model: nn.Module,
    settings: Sequence[float],
    told: Callable[[str], None],
) -> tuple[dict[str, Contender], dict[str, Rival]]:
    """Those that run, and the peak and bits of all."""
    blocks = subject.blocks(model)
    makers: dict[str, tuple[str, float | None, Callable[[], Contender]]] = {
        BLOCK: (BLOCK, None, lambda: per_block(model, blocks)),
        SELECTIVE: (SELECTIVE, None, lambda: selective(model, blocks)),
    }
    for share in settings:
        made = lambda share=share: memory_budget(model, share)  # noqa: E731
        makers[f"{BUDGET} {share}"] = (BUDGET, share, made)
    contenders, rivals = {}, {}
    for key, (name, setting, make) in makers.items():
        try:
            contender = make()
            outcome = bench.outcome(contender)
        except RuntimeError as error:  # theirs to raise: what cannot be compiled or recomputed
            why = str(error).strip().splitlines()[0]
            rivals[key] = Rival(name, setting, None, why)
            told(f"{key} fails: {why}")
            continue
        contenders[key] = contender
        rivals[key] = Rival(name, setting, outcome)
        told(f"{key}: {format_bytes(outcome.peak_bytes)}, gradients off by {outcome.error:.1e}")
    return contenders, rivals


def _between(
    frontier: Frontier, at: Mapping[int, float], limits: Sequence[float]
) -> Iterator[tuple[int, lowtide.Plan]]:
    """Plans where `aim` says, for every limit; their times are to be in `at` before the next."""
    for limit in limits:
        for _ in range(ROUNDS):
            room = aim(at, limit, frontier.floor)
            if room is None:
                break
            plan = frontier.within(room)
            if plan is not None:
                yield room, plan


def _chosen(rivals: dict[str, Rival], plain_bytes: int) -> dict[str, Rival]:
    """One of each kind: the fastest budget of those that save something."""

    def worth(key: str) -> tuple[bool, float]:
        outcome = rivals[key].outcome
        if outcome is None:
            return True, math.inf
        return outcome.peak_bytes > (1 - SAVED) * plain_bytes, outcome.ratio

    budgets = [key for key, rival in rivals.items() if rival.name == BUDGET]
    best = min(budgets, key=worth, default=None)
    return {k: rival for k, rival in rivals.items() if rival.name != BUDGET or k == best}


def _smallest(rival: Rival, plans: Sequence[Planned]) -> Planned | None:
    """The smallest plan that was measured to take no longer than the rival."""
    if rival.outcome is None:
        return None
    limit = rival.outcome.ratio
    fast = [plan for plan in plans if plan.outcome.ratio <= limit]
    return min(fast, key=lambda plan: plan.outcome.peak_bytes, default=None)


def _timed(rival: Rival, ratio: float) -> Rival:
    if rival.outcome is None:
        return rival
    return msgspec.structs.replace(
        rival, outcome=msgspec.structs.replace(rival.outcome, ratio=ratio)
    )


def _alone(rival: Rival) -> Rival:
    return msgspec.structs.replace(rival, same_peak=None, same_time=None)


def _replay(captured: lowtide.Captured, plan: lowtide.Plan) -> Contender:
    module = lowtide.replay(captured, plan)
    return Contender(module, module)


def _key(plan: lowtide.Plan) -> str:
    return f"plan {plan.peak_bytes} {plan.time_ns} {hash(plan.steps)}"


def _words(plan: lowtide.Plan | None) -> str:
    if plan is None:
        return "no plan"
    room = plan.peak_bytes - plan.resident_bytes
    return f"{format_bytes(room)}, {plan.overhead:+.2%} in {plan.solve_seconds:.1f} s"
