"""What the tests of pictures draw, and how they read it back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lowtide.frontends.chains import linear_chain
from lowtide.solver.compare import Comparison, Row
from tests.plans import plan_of, recomputing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

GRAPH = linear_chain(8, weight_bytes=2**19)
PLAN = plan_of(GRAPH, recomputing(GRAPH))


def labels(ax: Axes) -> list[str]:
    """The words of the legend."""
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def stairs(ax: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and edges of the step curve with that label."""
    from matplotlib.patches import StepPatch

    for patch in ax.patches:
        if isinstance(patch, StepPatch) and str(patch.get_label()).startswith(label):
            values, edges, _ = patch.get_data()
            return np.asarray(values), np.asarray(edges)
    raise AssertionError(label)


def vertices(line: Line2D) -> list[tuple[float, float]]:
    """The points of a line."""
    x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    return [(float(a), round(float(b), 6)) for a, b in zip(x, y, strict=True)]


def row(method: str, budget: int, overhead: float | None, **changes: object) -> Row:
    """A row with a plan of the given overhead, or without one."""
    base = PLAN.base_time_ns
    plan = None
    if overhead is not None:
        bound = changes.pop("bound", -1.0)
        assert isinstance(bound, float)
        plan = msgspec.structs.replace(
            PLAN,
            time_ns=int(base * (1 + overhead)),
            lower_bound_ns=-1 if bound < 0 else int(base * (1 + bound)),
        )
    status = "infeasible" if plan is None else "feasible"
    made = Row(method, f"{budget}", budget * 2**20, status, plan, 1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def comparison(*rows: Row) -> Comparison:
    """Rows on a graph with 1 MiB resident and a peak of 11 MiB."""
    return Comparison("g", "h", "bytes", "ns", 2**20, 11 * 2**20, PLAN.base_time_ns, rows)
