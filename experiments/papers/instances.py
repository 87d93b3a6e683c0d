"""Public instances as subjects, where a folder has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide import Schedule, simulate
from lowtide.frontends.instances import read_instance

from ..published.cases import all_cases, path_of
from ..published.folder import instances_folder
from .rows import Subject

if TYPE_CHECKING:
    from ..published.cases import Case


def subjects(start: str) -> list[Subject]:
    """Instances whose name starts so, with their published budgets and figures."""
    source = instances_folder()
    cases = [
        case
        for case in all_cases(source)[0]
        if case.kind == "overhead" and case.instance.startswith(start)
    ]
    found = []
    for instance in dict.fromkeys(case.instance for case in cases):
        here = [case for case in cases if case.instance == instance]
        graph = read_instance(path_of(source, instance))
        peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
        amounts = {case.name: str(case.budget_bytes(graph, peak)) for case in here}
        found.append(
            Subject(
                instance,
                lambda graph=graph: graph,  # type: ignore[misc]
                tuple(amounts[case.name] for case in here),
                {
                    ("auto", amounts[case.name]): f"published: {words(case)}"
                    for case in here
                    if words(case)
                },
            )
        )
    return found


def words(case: Case) -> str:
    """Every published figure of a budget."""
    return ", ".join(
        f"{figure.method} {100 * figure.value:.2f}%" if figure.value is not None else ""
        for figure in case.figures
    ).strip(", ")
