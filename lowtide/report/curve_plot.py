"""Overhead against budget, one line a method: what each gigabyte costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..solver.bounds import proven
from ..solver.calibration import overhead
from .cut import mark_cut, top_of
from .figures import INK, LIMIT, MUTED, look, new_axes, style
from .memory_plot import size_axis
from .scale import Scale
from .words import label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from ..solver.compare import Comparison, Row


def plot_curve(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Overhead of every method at every budget it could meet.

    Proven optima are filled; others are hollow, with a whisker down to the lower bound where one is
    known. What lies below the lower bound is shaded, and so are budgets at which no method found a
    plan. Where some points are far above lowtide's, the axis ends below them, and arrows say so.

    Parameters
    ----------
    comparison
        What `compare` returned.
    ax
        Where to draw; None makes a figure.

    Returns
    -------
    Axes
        The axes drawn on.
    """
    ax = new_axes(8.5, 5.0) if ax is None else ax
    style(ax)
    scale = Scale(
        comparison.resident_bytes,
        comparison.base_peak_bytes,
        comparison.base_time_ns,
        comparison.size_unit,
        comparison.time_unit,
    )
    rows = comparison.rows
    budgets = [row.budget_bytes for row in rows]
    unit, factor = size_axis(scale, max([*budgets, comparison.base_peak_bytes]))
    methods = list(dict.fromkeys(row.method for row in rows))
    bounds = bounds_by_budget(rows)
    points = [
        (row.method, row.budget_bytes / factor, 100.0 * row.overhead)
        for row in rows
        if row.overhead is not None
    ]
    top = top_of([(method, height) for method, _, height in points])
    for method in methods:
        found = [row for row in rows if row.method == method and row.plan is not None]
        if found:
            _draw_method(ax, method, sorted(found, key=_budget), factor, bounds, top)
    ends = [*budgets, comparison.base_peak_bytes]
    margin = max(0.06 * (max(ends) - min(ends)), 0.01 * max(ends))
    ax.set_xlim((min(ends) - margin) / factor, (max(ends) + margin) / factor)
    _shade_bound(ax, bounds, factor)
    _shade_infeasible(ax, rows, factor)
    ax.axvline(comparison.base_peak_bytes / factor, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    ax.annotate(
        "peak without recomputation",
        (comparison.base_peak_bytes / factor, 0.985),
        xycoords=ax.get_xaxis_transform(),
        xytext=(-3, 0),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="top",
        color=MUTED,
        fontsize=8,
    )
    ax.set_xlabel(f"budget ({unit})")
    ax.set_ylabel("overhead (% of step time)")
    ax.set_ylim(bottom=0)
    if top is not None:
        mark_cut(ax, points, top)
    _percent_axis(ax, scale, factor)
    ax.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    ax.set_axisbelow(True)
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        ax.legend(
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
            fontsize=9,
            title="filled: proven optimal",
            title_fontsize=8,
            alignment="left",
        )
    return ax


def _budget(row: Row) -> int:
    return row.budget_bytes


def _draw_method(
    ax: Axes,
    method: str,
    rows: list[Row],
    factor: float,
    bounds: dict[int, float],
    top: float | None,
) -> None:
    color, marker = look(method)
    x = [row.budget_bytes / factor for row in rows]
    y = [100.0 * (row.overhead or 0.0) for row in rows]
    ax.plot(x, y, color=color, linewidth=1.2, alpha=0.7, zorder=2)
    for at, height, row in zip(x, y, rows, strict=True):
        if top is not None and height > top:
            continue
        optimal = row.status == "optimal"
        ax.plot(
            [at],
            [height],
            marker,
            color=color,
            markerfacecolor=color if optimal else "white",
            markersize=6.5,
            markeredgewidth=1.4,
            zorder=4,
            clip_on=False,
        )
        if row.bound is not None and not optimal:
            # What others proved holds for it, too: the best bound, not its own.
            low = min(height, 100.0 * max(row.bound, bounds[row.budget_bytes]))
            ax.plot([at, at], [low, height], color=color, linewidth=1.1, zorder=3)
            ax.plot([at], [low], "_", color=color, markersize=7, markeredgewidth=1.4, zorder=3)
    # One entry a method, whatever its points look like.
    ax.plot(
        [], [], marker=marker, color=color, linewidth=1.2, markersize=6.5, label=label_of(method)
    )


def _shade_bound(ax: Axes, best: dict[int, float], factor: float) -> None:
    """Shade the overheads that no schedule of the bound's class can have."""
    if len(best) > 1:
        budgets = sorted(best)
        # A bound holds at every smaller budget: between two of them that of the larger one.
        ax.fill_between(
            [b / factor for b in budgets],
            [100.0 * best[b] for b in budgets],
            step="pre",
            color="#e4e7eb",
            linewidth=0,
            zorder=1,
            label="below the lower bound",
        )


def bounds_by_budget(rows: Sequence[Row]) -> dict[int, float]:
    """For each budget with a bound, the largest overhead that is proven there or at a larger one.

    What is proven of the base order is left out where a plan in another order beats it.
    """
    best: dict[int, float] = {}
    in_any, in_base = 0.0, 0.0
    for budget in sorted({row.budget_bytes for row in rows}, reverse=True):
        plans = [row.plan for row in rows if row.budget_bytes == budget and row.plan is not None]
        found = [plan for plan in plans if plan.overhead_bound is not None]
        if not found:
            continue
        for plan in found:
            any_ns, base_ns = proven(plan)
            in_any = max(in_any, overhead(any_ns, plan.base_time_ns, plan.calibration))
            in_base = max(in_base, overhead(base_ns, plan.base_time_ns, plan.calibration))
        beaten = any(plan.base_order_bound_ns >= 0 for plan in found)
        best[budget] = in_any if beaten else max(in_any, in_base)
    return best


def _shade_infeasible(ax: Axes, rows: tuple[Row, ...], factor: float) -> None:
    """Shade from the left edge of the axes to the largest budget at which nothing was found."""
    met = {row.budget_bytes for row in rows if row.plan is not None}
    missed = {row.budget_bytes for row in rows} - met
    if not missed:
        return
    edge = max(missed)
    if met and edge > min(met):
        return  # some smaller budget was met: nothing is impossible here, only unlucky
    proven = any(row.proven for row in rows if row.budget_bytes == edge)
    ax.axvspan(ax.get_xlim()[0], edge / factor, color=LIMIT, alpha=0.10, linewidth=0, zorder=0)
    ax.annotate(
        "infeasible" if proven else "no plan found",
        (edge / factor, 0.5),
        xycoords=ax.get_xaxis_transform(),
        xytext=(-4, 0),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="center",
        color=LIMIT,
        fontsize=9,
    )


def _percent_axis(ax: Axes, scale: Scale, factor: float) -> None:
    """The same budgets as percentages, along the top."""
    room = (scale.base_peak_bytes - scale.resident_bytes) / factor
    if room <= 0:
        return
    start = scale.resident_bytes / factor

    def to_percent(x: Any) -> Any:
        return 100.0 * (np.asarray(x) - start) / room

    def from_percent(percent: Any) -> Any:
        return start + np.asarray(percent) * room / 100.0

    top = ax.secondary_xaxis("top", functions=(to_percent, from_percent))
    top.set_xlabel(
        "% of the peak without recomputation (resident bytes left out)",
        fontsize=9,
        color=INK,
    )
    top.tick_params(labelsize=8, colors=MUTED)
    top.spines["top"].set_color(MUTED)
