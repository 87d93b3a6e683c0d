"""The generalised heuristics that Checkmate compares with: Jain et al. 2020, section 6.1.

*AP* takes the narrow positions of the forward order (articulation points of the graph, where one
tensor crosses) as the candidates for borders, *linearized* takes all positions. *sqrt(n)* keeps a
border after every sqrt(n) candidates (Chen et al. 2016, section 4.1), *greedy* is Algorithm 3 of
Chen et al. with its parameter B searched. Griewank's method is in `revolve`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .base import (
    NotApplicableError,
    base_order,
    both_phases,
    choose,
    forward_sizes,
    narrow_positions,
    points,
)
from .sqrt_n import checkpoint, segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..control import Control
    from ..graph import Graph
    from ..realise import Tables
    from ..schedule import Schedule
    from .base import Candidate

VALUES = 100  # values of B


def ap_sqrt_n(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """A border after every sqrt(n) narrow positions.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase, or no narrow position.
    """
    return choose(_equal(graph, narrow=True), budget_bytes, control)


def linearized_sqrt_n(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """A border after every sqrt(n) ops.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase.
    """
    return choose(_equal(graph, narrow=False), budget_bytes, control)


def ap_greedy(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Algorithm 3 over narrow positions.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase, or no narrow position.
    """
    return choose(_by_bytes(graph, narrow=True), budget_bytes, control)


def linearized_greedy(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Algorithm 3 over all positions.

    Raises
    ------
    NotApplicableError
        If the graph has no backward phase.
    """
    return choose(_by_bytes(graph, narrow=False), budget_bytes, control)


def _positions(graph: Graph, tables: Tables, narrow: bool) -> Sequence[int]:
    positions = narrow_positions(graph, tables) if narrow else range(1, tables.boundary)
    if narrow and not positions:
        raise NotApplicableError(f"graph {graph.name!r} has no articulation points")
    return positions


def _equal(graph: Graph, *, narrow: bool) -> Iterator[Candidate]:
    tables = both_phases(graph)
    positions = _positions(graph, tables, narrow)
    yield base_order(graph, tables)
    step = max(1, round(math.sqrt(len(positions) + 1)))
    yield checkpoint(graph, tables, list(positions[step - 1 :: step]))


def _by_bytes(graph: Graph, *, narrow: bool) -> Iterator[Candidate]:
    tables = both_phases(graph)
    positions = _positions(graph, tables, narrow)
    yield base_order(graph, tables)
    sizes = forward_sizes(graph)
    parts = [sum(sizes[a:b]) for a, b in pairwise([0, *positions, len(sizes)])]
    low, high = max(1.0, float(min(parts))), max(2.0, float(sum(sizes)))
    seen: set[tuple[int, ...]] = set()
    for limit in [0.0, *np.geomspace(low, high, points(graph, VALUES)).tolist()]:
        borders = segment(sizes, positions, limit)
        if borders not in seen:
            seen.add(borders)
            yield checkpoint(graph, tables, borders)
