"""What is computed and what is kept, one row an op: Checkmate's picture of R and S."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .figures import COMPUTED, KEPT, MUTED, RECOMPUTED, new_axes, style

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from ..solver.graph import Graph
    from ..solver.plan import Plan

    Cells = npt.NDArray[np.uint8]

NOTHING, HELD, FIRST, AGAIN = range(4)
LARGEST = 600  # cells on the longer side; more would be finer than what a page shows
THICK = 250  # from this many cells on, executions are drawn three cells wide to be seen


def plot_schedule(graph: Graph, plan: Plan, ax: Axes | None = None) -> Axes:
    """Executions from left to right, ops from top to bottom.

    A cell is light while an output of the op is in memory, dark where the op runs first, orange
    where it runs again.

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
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    ax = new_axes(9.5, 6.2) if ax is None else ax
    style(ax)
    cells = schedule_cells(graph, plan)
    rows, columns = max(1, cells.shape[0]), max(1, cells.shape[1])
    ax.imshow(
        thicken(shrink(cells, LARGEST)),
        aspect="auto",
        interpolation="none",
        cmap=ListedColormap(["white", KEPT, COMPUTED, RECOMPUTED]),
        norm=BoundaryNorm([-0.5, 0.5, 1.5, 2.5, 3.5], 4),
        extent=(0, columns, rows, 0),
    )
    first = graph.boundary
    order = plan.schedule.computes()
    if 0 < first < len(graph.ops) and first in order:
        ax.axhline(first, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.axvline(order.index(first), color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.set_xlabel("execution")
    ax.set_ylabel("op, in base order")
    again = len(order) - len(set(order))
    ax.legend(
        handles=[
            Patch(color=COMPUTED, label="computed"),
            Patch(color=RECOMPUTED, label=f"recomputed ({again:,})"),
            Patch(color=KEPT, label="kept"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1),
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return ax


def schedule_cells(graph: Graph, plan: Plan) -> Cells:
    """Ops x executions: 0 nothing, 1 an output is held, 2 runs, 3 runs again."""
    steps = plan.schedule.steps
    executions = sum(step >= 0 for step in steps)
    cells = np.zeros((len(graph.ops), executions), dtype=np.uint8)
    producer = graph.arrays.producer.tolist()
    held = [0] * len(graph.ops)  # outputs of the op in memory
    since = [0] * len(graph.ops)
    present = [False] * len(graph.tensors)
    runs: list[tuple[int, int]] = []
    at = -1
    for step in steps:
        if step >= 0:
            at += 1
            runs.append((step, at))
            for t in graph.ops[step].outputs:
                if not present[t]:
                    present[t] = True
                    held[step] += 1
                    if held[step] == 1:
                        since[step] = at
        else:
            t = -step - 1
            present[t] = False
            op = producer[t]
            held[op] -= 1
            if held[op] == 0:
                cells[op, since[op] : at + 1] = HELD
    for op, count in enumerate(held):
        if count > 0:
            cells[op, since[op] :] = HELD
    ran: set[int] = set()
    for op, column in runs:
        cells[op, column] = AGAIN if op in ran else FIRST
        ran.add(op)
    return cells


def shrink(cells: Cells, largest: int) -> Cells:
    """At most `largest` rows and columns; a cell becomes the most important one it stands for."""
    small = cells
    for axis in (0, 1):
        count = small.shape[axis]
        if count > largest:
            starts = np.unique(np.linspace(0, count, largest, endpoint=False).astype(np.int64))
            small = np.maximum.reduceat(small, starts, axis=axis)
    return small


def thicken(cells: Cells) -> Cells:
    """Let executions spill over their neighbours where a cell alone would be too small to see."""
    if max(cells.shape, default=0) <= THICK:
        return cells
    marks = np.pad(np.where(cells >= FIRST, cells, NOTHING), 1)
    rows, columns = cells.shape
    thick = cells
    for down in range(3):
        for right in range(3):
            thick = np.maximum(thick, marks[down : down + rows, right : right + columns])
    return thick
