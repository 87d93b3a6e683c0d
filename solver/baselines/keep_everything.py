"""Keep everything: the base order, as PyTorch runs a step; no recomputation, the largest peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schedule import Schedule

if TYPE_CHECKING:
    from ..control import Control
    from ..graph import Graph


def keep_everything(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """Run every op once, in base order; the budget changes nothing.

    Parameters
    ----------
    graph
        Any graph.
    budget_bytes
        Not used: this is the schedule that the others are compared with.
    control
        Not used either: there is nothing to search.
    """
    del budget_bytes, control
    return Schedule.keep_everything(graph)
