"""Memory over the time of the step, under the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..solver.schedule import Schedule
from ..solver.simulate import simulate
from .figures import COMPUTED, INK, KEPT, LIMIT, MUTED, RECOMPUTED, RESIDENT, new_axes, style
from .scale import Scale

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from ..solver.graph import Graph
    from ..solver.plan import Plan
    from ..solver.simulate import Simulation

    Floats = npt.NDArray[np.float64]


def plot_memory(graph: Graph, plan: Plan, ax: Axes | None = None) -> Axes:
    """Live bytes during every execution, the budget, and the step without recomputation.

    Executions that are not the first of their op are orange. Where the whole step takes no time,
    the x axis counts executions.

    Parameters
    ----------
    graph, plan
        A plan of this graph.
    ax
        Where to draw; None makes a figure.

    Returns
    -------
    Axes
        The axes drawn on.
    """
    ax = new_axes(9.5, 4.2) if ax is None else ax
    style(ax)
    scale = Scale.of(graph)
    run = simulate(graph, plan.schedule)
    base = simulate(graph, Schedule.keep_everything(graph))
    unit, factor = size_axis(scale, max(base.peak_bytes, run.peak_bytes, plan.budget_bytes))
    clock, per_ns = time_axis(scale, run.time_ns)

    edges = edges_of(graph, run, per_ns)
    values = np.array(run.during_bytes, dtype=float) / factor
    again = np.array(repeats(run.ops), dtype=bool)
    resident = plan.resident_bytes / factor
    ax.stairs(values, edges, fill=True, color=KEPT, label="live during the op")
    ax.stairs(
        np.where(again, values, np.nan),
        edges,
        fill=True,
        color=RECOMPUTED,
        alpha=0.75,
        label=f"recomputing ({int(again.sum()):,} executions)",
    )
    ax.stairs(values, edges, color=COMPUTED, linewidth=0.8)
    if resident > 0:
        ax.axhspan(0, resident, color=RESIDENT, label="resident", linewidth=0)
    ax.stairs(
        np.array(base.during_bytes, dtype=float) / factor,
        edges_of(graph, base, per_ns),
        color=MUTED,
        linewidth=1.0,
        label="without recomputation",
    )
    budget = plan.budget_bytes / factor
    ax.axhline(budget, color=LIMIT, linewidth=1.3, label=f"budget {scale.size(plan.budget_bytes)}")
    _mark_boundary(ax, graph, run, edges)
    if run.peak_position >= 0:
        at = run.peak_position
        ax.plot(
            [(edges[at] + edges[at + 1]) / 2],
            [values[at]],
            "v",
            color=INK,
            markersize=6,
            label=f"peak {scale.size(run.peak_bytes)}",
        )
    ax.set_xlim(0, float(edges[-1]) if edges[-1] > 0 else 1.0)
    ax.set_ylim(0, 1.12 * max(float(values.max(initial=0.0)), budget, base.peak_bytes / factor))
    ax.set_xlabel(f"time in the step ({clock})")
    ax.set_ylabel(f"memory ({unit})")
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return ax


def repeats(ops: tuple[int, ...]) -> list[bool]:
    """For each execution: is it not the first of its op."""
    seen: set[int] = set()
    again = []
    for op in ops:
        again.append(op in seen)
        seen.add(op)
    return again


def edges_of(graph: Graph, run: Simulation, per_ns: float) -> Floats:
    """Start of every execution and end of the last; counts of executions if `per_ns` is 0."""
    if per_ns == 0.0:
        return np.arange(len(run.ops) + 1, dtype=float)
    times = [graph.ops[op].time_ns for op in run.ops]
    return np.concatenate(([0.0], np.cumsum(np.array(times, dtype=float)))) * per_ns


def size_axis(scale: Scale, largest: int) -> tuple[str, float]:
    """Unit of a memory axis that reaches to `largest` bytes, and bytes in one unit."""
    if scale.size_unit != "bytes":
        return scale.size_unit, 1.0
    for name, factor in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if largest >= factor:
            return name, factor
    return "B", 1.0


def time_axis(scale: Scale, total: int) -> tuple[str, float]:
    """Unit of a time axis that reaches to `total`, and units in one nanosecond."""
    if total <= 0:
        return "executions", 0.0
    if scale.time_unit != "ns":
        return scale.time_unit, 1.0
    for name, nanoseconds in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if total >= 2 * nanoseconds:
            return name, 1.0 / nanoseconds
    return "ns", 1.0


def _mark_boundary(ax: Axes, graph: Graph, run: Simulation, edges: Floats) -> None:
    """A line where the backward pass begins."""
    first = graph.boundary
    if first >= len(graph.ops) or first not in run.ops or first == 0:
        return
    at = float(edges[run.ops.index(first)])
    ax.axvline(at, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
    for word, shift, side in (("forward", -6, "right"), ("backward", 6, "left")):
        ax.annotate(
            word,
            (at, 0.985),
            xycoords=ax.get_xaxis_transform(),
            xytext=(shift, 0),
            textcoords="offset points",
            ha=side,
            va="top",
            color=MUTED,
            fontsize=9,
        )
