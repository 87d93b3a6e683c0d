"""Take recomputations out of a schedule while a budget allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .base import Candidate, evaluate

if TYPE_CHECKING:
    from ..control import Control
    from ..graph import Graph
    from ..realise import Tables


def thin(
    graph: Graph,
    tables: Tables,
    candidate: Candidate,
    budget_bytes: int,
    control: Control | None = None,
) -> Candidate:
    """Drop repeated executions, the longest first, each if the peak stays within the budget.

    They are tried in groups that are halved until they fit, so that a generous budget takes few
    trials.
    """
    computes = candidate.computes
    seen: set[int] = set()
    again = []
    for place, op in enumerate(computes.tolist()):
        if op in seen:
            again.append(place)
        seen.add(op)
    time = graph.arrays.time[computes]
    again.sort(key=lambda place: (-int(time[place]), place))
    stays = np.ones(len(computes), dtype=np.bool_)
    best = candidate
    groups = [again]
    while groups and not (control is not None and control.over):
        group = groups.pop()
        if not group:
            continue
        stays[group] = False
        trial = evaluate(graph, tables, computes[stays])
        if trial.peak_bytes <= budget_bytes:
            best = trial
            continue
        stays[group] = True
        if len(group) > 1:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return best
