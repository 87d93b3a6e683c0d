"""Random valid schedules: recomputations in both phases, and other orders of the ops."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec

from lowtide.solver.check import check
from lowtide.solver.schedule import Schedule

from .. import plans

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

    from lowtide.frontends.torch.program import Program
    from lowtide.solver.graph import Graph
    from lowtide.solver.plan import Plan


def random_schedule(
    graph: Graph, rng: random.Random, *, drop: float = 0.3, extra: float = 0.05
) -> Schedule:
    """The base order with tensors dropped at random and recomputed, with their ancestors, on need.

    `drop` is the chance that an op is followed by dropping a share of what is live; `extra` that of
    a recomputation which nothing asked for.
    """
    producer = {t: i for i, op in enumerate(graph.ops) for t in op.outputs}
    live: set[int] = set()
    computes: list[int] = []

    def run(op: int) -> None:
        pending = [op]
        while pending:
            missing = [
                producer[t]
                for t in graph.ops[pending[-1]].inputs
                if t in producer and t not in live
            ]
            if missing:
                pending.extend(missing)
                continue
            done = pending.pop()
            computes.append(done)
            live.update(graph.ops[done].outputs)

    for index in range(len(graph.ops)):
        run(index)
        if rng.random() < drop:
            for t in sorted(live):
                producer_op = graph.ops[producer[t]]
                droppable = producer_op.recompute and not graph.tensors[t].output
                if droppable and rng.random() < 0.5:
                    live.discard(t)
        if rng.random() < extra:
            again = rng.randrange(index + 1)
            if graph.ops[again].recompute:
                run(again)
    return Schedule.from_computes(graph, computes)


def reordered(
    graph: Graph,
    rng: random.Random,
    *,
    spread: float = 1.0,
    drop: float = 0.3,
    extra: float = 0.05,
    boundary: Literal["early", "late", "any"] = "any",
) -> Schedule:
    """Any topological order of the graph, with recomputations anywhere after an op's first run.

    Of the ops that can run, the one with the smallest priority does: its place in the base order,
    moved by up to `spread` times the number of ops. `drop` and `extra` as in `random_schedule`. The
    boundary can be placed as early or as late as the graph allows.
    """
    count = len(graph.ops)
    producer = {t: i for i, op in enumerate(graph.ops) for t in op.outputs}
    before = [{producer[t] for t in op.inputs if t in producer} for op in graph.ops]
    followers: list[list[int]] = [[] for _ in graph.ops]
    for op, sources in enumerate(before):
        for source in sources:
            followers[source].append(op)
    priority = [i + spread * count * rng.uniform(-1.0, 1.0) for i in range(count)]
    if boundary != "any":
        reached = _reach(graph.boundary, before if boundary == "early" else followers)
        for op in reached:
            priority[op] += count * (2 + 2 * spread) * (-1 if boundary == "early" else 1)
    waiting = [len(sources) for sources in before]
    ready = [(priority[i], i) for i in range(count) if not waiting[i]]
    heapq.heapify(ready)
    droppable = {
        t
        for t, maker in producer.items()
        if graph.ops[maker].recompute and not graph.tensors[t].output
    }
    live: set[int] = set()
    ran: list[int] = []
    computes: list[int] = []

    def run(op: int) -> None:
        pending = [op]
        while pending:
            missing = [t for t in graph.ops[pending[-1]].inputs if t in producer and t not in live]
            if missing:
                pending.append(producer[rng.choice(missing)])
                continue
            done = pending.pop()
            computes.append(done)
            live.update(graph.ops[done].outputs)

    while ready:
        _, index = heapq.heappop(ready)
        run(index)
        ran.append(index)
        for follower in followers[index]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (priority[follower], follower))
        if rng.random() < drop:
            live.difference_update([t for t in sorted(live & droppable) if rng.random() < 0.5])
        if rng.random() < extra:
            again = rng.choice(ran)
            if graph.ops[again].recompute:
                run(again)
    return Schedule.from_computes(graph, computes)


def _reach(start: int, neighbours: Sequence[Collection[int]]) -> set[int]:
    """`start` and all that can be reached from it."""
    found, stack = {start}, [start]
    while stack:
        new = set(neighbours[stack.pop()]) - found
        found |= new
        stack.extend(new)
    return found


def moved_ops(graph: Graph, schedule: Schedule) -> tuple[int, int]:
    """How many forward ops first run after the boundary, and backward ops before it."""
    computes = schedule.computes()
    first = {op: place for place, op in reversed(list(enumerate(computes)))}
    at = first[graph.boundary]
    late = sum(first[op] > at for op in range(graph.boundary))
    early = sum(first[op] < at for op in range(graph.boundary + 1, len(graph.ops)))
    return late, early


def lazy_frees(graph: Graph, schedule: Schedule, rng: random.Random) -> Schedule:
    """The same with frees that come later than they could, or never."""
    maker = {t: i for i, op in enumerate(graph.ops) for t in op.outputs}
    steps = list(schedule)
    for place in reversed(range(len(steps))):
        if steps[place] >= 0 or rng.random() < 0.5:
            continue
        tensor = -steps[place] - 1
        rest = steps[place + 1 :]
        limit = next(
            (i for i, step in enumerate(rest) if step in (maker[tensor], steps[place])), len(rest)
        )
        step = steps.pop(place)
        where = rng.randint(0, limit)
        if where < len(rest):
            steps.insert(place + where, step)
    return Schedule(tuple(steps))


def unmarked(program: Program) -> Program:
    """The program with a graph that knows of data flow only, not of what else fixes the order."""
    graph = program.graph
    kept = [t for t, tensor in enumerate(graph.tensors) if not tensor.name.startswith("after.")]
    assert kept == list(range(len(kept)))
    ops = []
    for op in graph.ops:
        inputs = () if op.kind == "lowtide.backward" else op.inputs
        ops.append(
            msgspec.structs.replace(
                op,
                inputs=tuple(t for t in inputs if t < len(kept)),
                outputs=tuple(t for t in op.outputs if t < len(kept)),
            )
        )
    tensors = graph.tensors[: len(kept)]
    bare = msgspec.structs.replace(graph, ops=tuple(ops), tensors=tensors)
    return replace(program, graph=bare)


def plan_of(graph: Graph, schedule: Schedule, *, budget_bytes: int | None = None) -> Plan:
    """A checked plan around a schedule; the budget is twice its peak unless given."""
    if budget_bytes is not None:
        return plans.plan_of(graph, schedule, budget_bytes=budget_bytes)
    plan = plans.plan_of(graph, schedule)
    # Room for tests that add to existing gradients: a plan without them would warn.
    plan = msgspec.structs.replace(plan, budget_bytes=2 * plan.peak_bytes)
    check(graph, plan)
    return plan
