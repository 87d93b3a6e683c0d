"""Plans made without a solver, for tests of what happens to a plan afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.solver.plan import Plan, Status, Stop
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph


def plan_of(graph: Graph, schedule: Schedule, **changes: Any) -> Plan:
    """A plan that is right about `schedule`; `changes` overwrite fields."""
    run = simulate(graph, schedule)
    base = sum(op.time_ns for op in graph.ops)
    fields: dict[str, Any] = {
        "graph_name": graph.name,
        "graph_hash": graph.structure_hash,
        "budget_bytes": run.peak_bytes,
        "resident_bytes": graph.resident_bytes,
        "peak_bytes": run.peak_bytes,
        "time_ns": run.time_ns,
        "base_time_ns": base,
        "lower_bound_ns": base,
        "bound_class": "any schedule",
        "status": Status.FEASIBLE,
        "stopped_by": Stop.DONE,
        "method": "test",
        "seed": 0,
        "threads": 1,
        "solve_seconds": 0.5,
        "versions": {"lowtide": "0.1.0"},
        "steps": schedule.to_text(),
        "existing_gradient_bytes": graph.existing_gradient_bytes,
    }
    return Plan(**{**fields, **changes})


def recomputing(graph: Graph, every: int = 2) -> Schedule:
    """A schedule that drops all but every `every`-th forward result and makes it again at need."""
    boundary = graph.boundary
    producer = graph.arrays.producer.tolist()
    dropped = {
        t
        for number, op in enumerate(graph.ops[:boundary])
        if op.recompute and number % every
        for t in op.outputs
        if not graph.tensors[t].output
    }
    order = list(range(boundary))
    present = {t for op in graph.ops[:boundary] for t in op.outputs} - dropped

    def need(t: int) -> None:
        todo = [(t, False)]  # on a stack of its own: chains are deeper than Python's
        while todo:
            t, ready = todo.pop()
            maker = producer[t]
            if maker < 0 or t in present:
                continue
            if ready:
                order.append(maker)
                present.update(graph.ops[maker].outputs)
                continue
            todo.append((t, True))
            todo += [(read, False) for read in reversed(graph.ops[maker].inputs)]

    for number in range(boundary, len(graph.ops)):
        for t in graph.ops[number].inputs:
            need(t)
        order.append(number)
        present.update(graph.ops[number].outputs)
    return Schedule.from_computes(graph, order)
