"""Time against peak, one panel for each model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowtide.report.figures import INK, MARKERS, MUTED, SERIES, style

from .rivals import BLOCK, BUDGET, SELECTIVE, TITLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .rows import Result

COLUMNS = 3
WRONG = 1e-3  # a gradient this far off is no rounding
ABOVE = 1.1  # plans slower than this times the slowest rival are out of the picture
LOOK = {name: (SERIES[k], MARKERS[k]) for k, name in enumerate((BLOCK, SELECTIVE, BUDGET), 1)}


def picture(results: Sequence[Result]) -> Figure:
    """Peak in MB and time over plain PyTorch; hollow markers: gradients that are wrong."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(results) / COLUMNS)
    figure = Figure(figsize=(4.0 * COLUMNS, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for ax, result in zip(grid.flat, results, strict=False):
        panel(ax, result)
    for ax in grid.flat[len(results) :]:
        ax.set_axis_off()
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    return figure


def panel(ax: Axes, result: Result) -> None:
    """One model."""
    style(ax)
    ax.plot(
        [plan.outcome.peak_bytes / 1e6 for plan in result.plans],
        [plan.outcome.ratio for plan in result.plans],
        color=SERIES[0], marker=MARKERS[0], label="lowtide",
    )  # fmt: skip
    for name, (colour, marker) in LOOK.items():
        found = result.budgets if name == BUDGET else result.rivals
        outcomes = [rival.outcome for rival in found if rival.name == name and rival.outcome]
        right = [outcome for outcome in outcomes if outcome.error < WRONG]
        for kind, face in ((right, colour), ([o for o in outcomes if o not in right], "none")):
            ax.plot(
                [outcome.peak_bytes / 1e6 for outcome in kind],
                [outcome.ratio for outcome in kind],
                color=colour, marker=marker, linestyle="none", markerfacecolor=face,
                label=TITLES[name] if kind is right else "_wrong",
            )  # fmt: skip
    ax.plot([result.plain_bytes / 1e6], [1.0], color=INK, marker="P", linestyle="none",
            label="plain PyTorch")  # fmt: skip
    ax.axhline(1.0, color=MUTED, linewidth=0.6)
    ax.set_xlim(left=0.0)
    known = [rival.outcome.ratio for rival in result.rivals + result.budgets if rival.outcome]
    shown = [1.0, *known, *(plan.outcome.ratio for plan in result.plans)]
    top = min(max(shown), ABOVE * max(known, default=max(shown)))
    room = 0.05 * (top - min(shown)) + 0.01
    ax.set_ylim(min(shown) - room, top + room)
    ax.set_title(result.title, fontsize=10)
    ax.set_xlabel("peak, MB")
    ax.set_ylabel("time, plain = 1")
