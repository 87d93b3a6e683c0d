"""Where everything that a plan allocates would lie in one buffer: addresses over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..solver.memory.addresses import addresses
from .figures import COMPUTED, KEPT, MUTED, RECOMPUTED, new_axes, style
from .memory_plot import repeats, size_axis
from .scale import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..solver.graph import Graph
    from ..solver.memory.addresses import AddressPlan
    from ..solver.plan import Plan

MOST_SHAPES = 1500  # from so many on, rectangles are drawn as pixels


def plot_addresses(
    graph: Graph, plan: Plan, ax: Axes | None = None, *, found: AddressPlan | None = None
) -> Axes:
    """A rectangle for each block: the executions for which it lives, the bytes where it lies.

    Parameters
    ----------
    graph, plan
        A plan of this graph.
    ax
        Where to draw; None makes a figure.
    found
        The addresses; None finds them.

    Returns
    -------
    Axes
        The axes drawn on.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    ax = new_axes(9.5, 4.2) if ax is None else ax
    style(ax)
    found = addresses(graph, plan) if found is None else found
    scale = Scale.of(graph)
    unit, factor = size_axis(scale, found.arena_bytes)
    order = plan.schedule.computes()
    again = repeats(order)
    colors = [
        MUTED if not block.makes else RECOMPUTED if again[block.makes[0][0]] else KEPT
        for block in found.blocks
    ]
    left = np.array([block.first for block in found.blocks], dtype=float)
    right = np.array([block.last + 1 for block in found.blocks], dtype=float)
    low = np.array(found.offsets, dtype=float) / factor
    high = low + np.array([block.size_bytes for block in found.blocks], dtype=float) / factor
    corners = [(left, low), (right, low), (right, high), (left, high)]
    shapes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    ax.add_collection(
        PolyCollection(
            list(shapes),
            facecolors=colors,
            edgecolors="white",
            linewidths=0.3,
            rasterized=len(found.blocks) > MOST_SHAPES,
        )
    )
    top = found.arena_bytes / factor
    ax.axhline(top, color=COMPUTED, linewidth=1.0)
    ax.set_xlim(0, max(1, len(order)))
    ax.set_ylim(0, 1.05 * top if top > 0 else 1.0)
    ax.set_xlabel("execution")
    ax.set_ylabel(f"address ({unit})")
    ax.legend(
        handles=[
            Patch(color=KEPT, label="results"),
            Patch(color=RECOMPUTED, label="results made again"),
            Patch(color=MUTED, label="workspace"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return ax
