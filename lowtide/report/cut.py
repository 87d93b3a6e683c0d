"""Where an axis of overheads ends, with marks for what lies beyond: no method flattens another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .figures import MUTED, look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

OWN = "auto"
TIMES = 3.0  # as much as lowtide's largest, or as the median of all, is still shown
SLACK = 1.2  # a little more is shown, too, instead of being cut
ROOM = 1.08  # above the largest point that is shown
STEP = 7.0  # points of paper between the marks at one budget


def top_of(values: Sequence[tuple[str, float]]) -> float | None:
    """Where to end the axis; None where nothing needs to be cut.

    Parameters
    ----------
    values
        Methods and their heights, in the unit of the axis.
    """
    if not values:
        return None
    heights = [height for _, height in values]
    own = [height for method, height in values if method == OWN]
    limit = TIMES * max(*own, float(np.median(heights)), 0.0)
    if limit <= 0.0 or max(heights) <= SLACK * limit:
        return None
    return ROOM * max(height for height in heights if height <= limit)


def mark_cut(ax: Axes, points: Sequence[tuple[str, float, float]], top: float) -> None:
    """End the axis at `top`, an arrow for each point above it, and say in the legend what it means.

    Parameters
    ----------
    points
        Method, x and height of what is above `top`; nothing else is marked.
    """
    from matplotlib.transforms import ScaledTranslation

    cut = [point for point in points if point[2] > top]
    if not cut:
        return
    ax.set_ylim(top=top)
    inches = ax.figure.dpi_scale_trans
    for x in dict.fromkeys(x for _, x, _ in cut):
        here = [method for method, at, _ in cut if at == x]
        for place, method in enumerate(here):
            shift = STEP * (place - (len(here) - 1) / 2) / 72.0
            ax.plot(
                [x], [top], "^", color=look(method)[0], markersize=6, clip_on=False, zorder=5,
                transform=ax.transData + ScaledTranslation(shift, 0.0, inches),
            )  # fmt: skip
    largest = max(height for _, _, height in cut)
    label = f"cut off: above the axis,\nup to {largest:,.0f}%"
    ax.plot([], [], "^", color=MUTED, markersize=6, label=label)
