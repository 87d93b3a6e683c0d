"""What is measured: one row a network, and the exponents fitted over the rows of a family."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lowtide.frontends.chains import residual_network, transformer
from lowtide.solver.baselines import BASELINES
from lowtide.solver.errors import NoPlanError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowtide.solver.graph import Graph
    from lowtide.solver.progress import Event

RIVALS = ("sqrt_n", "per_block")


@dataclass(frozen=True)
class Family:
    """Networks of one kind at several depths, and the memory that each may take.

    Attributes
    ----------
    rule
        `sqrt`: the smallest peak of Chen's segments at the least depth, times the square root of
        the depth over that one; `half`: half of what the step takes without recomputation. Both
        leave out what is always in memory.
    """

    name: str
    depths: tuple[int, ...]
    build: Callable[[int], Graph]
    rule: str


def stages(layers: int) -> Graph:
    """A residual network with four stages in the proportions of ResNet-152."""
    return residual_network(layers, stages=(3, 8, 36, 3), size=64)


FAMILIES = (
    Family("residual", (100, 200, 500, 1000, 1200), residual_network, "sqrt"),
    Family("residual, 4 stages", (100, 200, 500, 1000, 1200), stages, "sqrt"),
    Family("transformer", (12, 24, 48, 96), transformer, "half"),
)


@dataclass(frozen=True)
class Row:
    """One network planned.

    Attributes
    ----------
    peak_bytes, budget_bytes, planned_bytes
        Without recomputation, allowed and planned; resident bytes left out.
    first_seconds
        Processor time until a plan within the budget was known.
    cpu_seconds, wall_seconds
        Of the whole solve.
    overhead, gap
        Shares of the step without recomputation, and of the planned one.
    forward
        Share of the step that the forward phase takes: one more forward run would cost that.
    rivals
        Overhead of the published heuristics at the same budget; None where they cannot meet it.
    """

    family: str
    depth: int
    ops: int
    peak_bytes: int
    budget_bytes: int
    planned_bytes: int
    first_seconds: float
    cpu_seconds: float
    wall_seconds: float
    overhead: float
    gap: float
    forward: float
    rivals: dict[str, float | None]


class _FirstPlan:
    """Notes the processor time at which the first plan within the budget was known."""

    def __init__(self) -> None:
        self.begun = time.process_time()
        self.seconds = math.nan

    def update(self, event: Event) -> None:
        """Hear of an event."""
        if event.incumbent_ns is not None and math.isnan(self.seconds):
            self.seconds = time.process_time() - self.begun


def measure(
    family: Family, depths: Sequence[int], *, gap: float, time_limit: float, seed: int = 0
) -> list[Row]:
    """Plan the networks of a family; those that find no plan in time are left out."""
    rows: list[Row] = []
    unit = 0.0
    for depth in depths:
        graph = family.build(depth)
        base = simulate(graph, Schedule.keep_everything(graph))
        peak = base.peak_bytes - graph.resident_bytes
        if family.rule == "half":
            room = peak // 2
        else:
            if unit == 0.0:
                least = simulate(graph, BASELINES["sqrt_n"](graph, None) or ()).peak_bytes
                unit = (least - graph.resident_bytes) / math.sqrt(depth)
            room = int(unit * math.sqrt(depth))
        budget = graph.resident_bytes + room
        first = _FirstPlan()
        wall = time.monotonic()
        try:
            plan = solve(graph, budget, gap=gap, time_limit=time_limit, seed=seed, progress=first)
        except NoPlanError:
            continue
        rows.append(
            Row(
                family=family.name,
                depth=depth,
                ops=len(graph.ops),
                peak_bytes=peak,
                budget_bytes=room,
                planned_bytes=plan.peak_bytes - graph.resident_bytes,
                first_seconds=first.seconds,
                cpu_seconds=time.process_time() - first.begun,
                wall_seconds=time.monotonic() - wall,
                overhead=plan.overhead,
                gap=plan.gap or 0.0,
                forward=sum(op.time_ns for op in graph.ops if op.phase == "forward") / base.time_ns,
                rivals={name: rival(graph, name, budget) for name in RIVALS},
            )
        )
    return rows


def rival(graph: Graph, name: str, budget: int) -> float | None:
    """Overhead of a published heuristic, or None if it cannot meet the budget."""
    schedule = BASELINES[name](graph, budget)
    assert schedule is not None
    result = simulate(graph, schedule)
    if result.peak_bytes > budget:
        return None
    base = sum(op.time_ns for op in graph.ops)
    return result.time_ns / base - 1.0


def exponent(rows: Sequence[Row], field: str) -> float:
    """Power of the depth with which a field grows: the slope of a line through the logarithms."""
    depth = np.log([row.depth for row in rows])
    value = np.log([float(getattr(row, field)) for row in rows])
    return float(np.polyfit(depth, value, 1)[0])
