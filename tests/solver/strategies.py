"""Hypothesis strategies that all solver tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st

from lowtide.frontends.generated import build_random
from lowtide.solver.plan import Plan, Status, Stop
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.solver.graph import Graph


@st.composite
def graphs(
    draw: st.DrawFn, *, training: bool | None = None, max_ops: int = 8, fixed_share: int = 10
) -> Graph:
    """Small graphs: several outputs an op, residents, outputs, workspaces, zero sizes and times.

    Parameters
    ----------
    training
        True: forward, boundary, backward; False: a DAG without phases; None: either.
    max_ops
        Most ops of a DAG, or most forward ops of a training step (whole: about twice as many).
    fixed_share
        Percentage of ops that may run only once.
    """
    kind = draw(st.booleans()) if training is None else training
    count = draw(st.integers(1, max_ops))
    graph = build_random(
        lambda low, high: draw(st.integers(low, high)),
        count,
        training=kind,
        fixed_share=fixed_share,
    )
    if draw(st.booleans()):
        graph = draw(overwriting(graph))
    return draw(restoring(graph)) if draw(st.booleans()) else graph


@st.composite
def restoring(draw: st.DrawFn, graph: Graph) -> Graph:
    """The graph with ops that read an input only when they run again."""
    ops = list(graph.ops)
    produced = {t for op in ops for t in op.outputs}
    for index, op in enumerate(ops):
        free = [t for t in op.inputs if t in produced and t != op.overwrites]
        if not free or not draw(st.booleans()):
            continue
        t = draw(st.sampled_from(free))
        ops[index] = msgspec.structs.replace(op, restores=t)
    return msgspec.structs.replace(graph, ops=tuple(ops))


@st.composite
def overwriting(draw: st.DrawFn, graph: Graph) -> Graph:
    """The graph with ops that may overwrite an input, of the size of their output or not."""
    tensors, ops = list(graph.tensors), list(graph.ops)
    produced = {t for op in ops for t in op.outputs}
    taken: set[int] = set()
    for index, op in enumerate(ops):
        free = [t for t in op.inputs if t in produced - taken and not tensors[t].output]
        if not free or not op.outputs or not draw(st.booleans()):
            continue
        t = draw(st.sampled_from(free))
        taken.add(t)
        ops[index] = msgspec.structs.replace(op, overwrites=t)
        if draw(st.integers(0, 9)):
            made = op.outputs[0]
            size = tensors[t].size_bytes
            tensors[made] = msgspec.structs.replace(tensors[made], size_bytes=size)
    return msgspec.structs.replace(graph, ops=tuple(ops), tensors=tuple(tensors))


@st.composite
def compute_sequences(draw: st.DrawFn, graph: Graph, *, max_extra: int = 10) -> list[int]:
    """Valid sequences of executions: the base order with legal repetitions put in.

    Every op has run once before it is repeated, and its inputs have been produced by then, so any
    such sequence is a valid input of `Schedule.from_computes`.
    """
    computes = list(range(len(graph.ops)))
    for _ in range(draw(st.integers(0, max_extra))):
        position = draw(st.integers(1, len(computes)))
        earlier = sorted({op for op in computes[:position] if graph.ops[op].recompute})
        if earlier:
            computes.insert(position, draw(st.sampled_from(earlier)))
    return computes


@st.composite
def schedules(draw: st.DrawFn, graph: Graph) -> list[int]:
    """Members of the staged program's class, as `in_class` has it."""
    computes: list[int] = []
    for base in range(len(graph.ops)):
        earlier = [op for op in range(base) if graph.ops[op].recompute]
        again = draw(st.sets(st.sampled_from(earlier), max_size=3)) if earlier else set()
        computes += [*sorted(again), base]
    return computes


def in_class(computes: Sequence[int]) -> bool:
    """Whether between two base ops, earlier ops run again once each, in base order."""
    newest = previous = -1
    for op in computes:
        if op == newest + 1:
            newest, previous = op, -1
        elif previous < op <= newest:
            previous = op
        else:
            return False
    return True


@st.composite
def with_computes(
    draw: st.DrawFn, *, training: bool | None = None, max_ops: int = 8
) -> tuple[Graph, list[int]]:
    """A graph and a valid sequence of executions of it."""
    graph = draw(graphs(training=training, max_ops=max_ops))
    return graph, draw(compute_sequences(graph))


def plan_of(graph: Graph, computes: Sequence[int], **changes: object) -> Plan:
    """A correct plan from executions, with the fields of `changes` put in."""
    schedule = Schedule.from_computes(graph, computes)
    result = simulate(graph, schedule)
    plan = Plan(
        graph_name=graph.name,
        graph_hash=graph.structure_hash,
        budget_bytes=result.peak_bytes,
        resident_bytes=graph.resident_bytes,
        peak_bytes=result.peak_bytes,
        time_ns=result.time_ns,
        base_time_ns=sum(op.time_ns for op in graph.ops),
        lower_bound_ns=-1,
        bound_class="none",
        status=Status.FEASIBLE,
        stopped_by=Stop.DONE,
        method="test",
        seed=0,
        threads=1,
        solve_seconds=0.5,
        versions={"lowtide": "0"},
        steps=schedule.to_text(),
    )
    return msgspec.structs.replace(plan, **changes)
