"""Pictures with a panel for each subject and a line for each method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowtide.report.figures import look, save, style
from lowtide.report.words import label_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLUMNS = 2


@dataclass(frozen=True)
class Point:
    """One value of one method.

    Attributes
    ----------
    panel, method
        Where it belongs.
    x, y
        In the units of the axes.
    """

    panel: str
    method: str
    x: float
    y: float


def panels(points: Sequence[Point], path: Path, x: str, y: str, *, logarithmic: bool) -> None:
    """Draw and write a picture; nothing without points.

    Parameters
    ----------
    x, y
        Labels of the axes.
    logarithmic
        Both axes.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point.panel for point in points))
    if not names:
        return
    rows = math.ceil(len(names) / COLUMNS)
    columns = min(COLUMNS, len(names))
    figure = Figure(figsize=(4.6 * columns, 3.3 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    handles = {}
    for ax, name in zip(grid.flat, names, strict=False):
        style(ax)
        for method in dict.fromkeys(point.method for point in points if point.panel == name):
            found = sorted((p.x, p.y) for p in points if (p.panel, p.method) == (name, method))
            color, marker = look(method)
            (handles[method],) = ax.plot(
                [a for a, _ in found], [b for _, b in found],
                color=color, marker=marker, markersize=5, linewidth=1.2, label=label_of(method),
            )  # fmt: skip
        if logarithmic:
            ax.set_xscale("log")
            ax.set_yscale("log")
        ax.set_title(name, fontsize=10)
        ax.set_xlabel(x)
        ax.set_ylabel(y)
    for ax in list(grid.flat)[len(names) :]:
        ax.set_axis_off()
    figure.legend(
        handles=list(handles.values()), loc="outside lower center", ncols=4, frameon=False,
        fontsize=8,
    )  # fmt: skip
    save(grid[0, 0], path)
