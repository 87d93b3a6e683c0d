"""Hypothesis strategies that all solver tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from lowtide.frontends.generated import build_random

if TYPE_CHECKING:
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
    return build_random(
        lambda low, high: draw(st.integers(low, high)),
        count,
        training=kind,
        fixed_share=fixed_share,
    )


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
def with_computes(
    draw: st.DrawFn, *, training: bool | None = None, max_ops: int = 8
) -> tuple[Graph, list[int]]:
    """A graph and a valid sequence of executions of it."""
    graph = draw(graphs(training=training, max_ops=max_ops))
    return graph, draw(compute_sequences(graph))
