"""Random valid schedules, with recomputations in forward and in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.solver.check import check
from lowtide.solver.plan import Plan, Status, Stop
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    import random

    from lowtide.solver.graph import Graph


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


def plan_of(graph: Graph, schedule: Schedule, *, budget_bytes: int | None = None) -> Plan:
    """A checked plan around a schedule; the budget is its peak unless given."""
    found = simulate(graph, schedule)
    plan = Plan(
        graph_name=graph.name,
        graph_hash=graph.structure_hash,
        budget_bytes=found.peak_bytes if budget_bytes is None else budget_bytes,
        resident_bytes=graph.resident_bytes,
        peak_bytes=found.peak_bytes,
        time_ns=found.time_ns,
        base_time_ns=sum(op.time_ns for op in graph.ops),
        lower_bound_ns=-1,
        bound_class="",
        status=Status.FEASIBLE,
        stopped_by=Stop.DONE,
        method="test",
        seed=0,
        threads=1,
        solve_seconds=0.0,
        versions={},
        steps=schedule.to_text(),
    )
    if budget_bytes is None:
        check(graph, plan)
    return plan
