"""What is known of a joint graph before a compiler sees it.

Inductor is run up to the point where it asks for the split, and no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .emit import saved_nodes
from .own import own_splits, saved_bytes

if TYPE_CHECKING:
    from ...solver.graph import Graph
    from ...solver.plan import Plan
    from .own import Choice, Own, Task


class Survey(NamedTuple):
    """A joint graph.

    Attributes
    ----------
    graph, digest
        For the solver, and a key for what PyTorch gave.
    budget_bytes
        The user's budget.
    own
        PyTorch's own splits.
    outside_bytes
        Resident bytes that are there without the compiler.
    kept_bytes
        What is saved without recomputation, inputs left out.
    """

    graph: Graph
    digest: str
    budget_bytes: int
    own: tuple[Own, ...]
    outside_bytes: int
    kept_bytes: int

    def first(self, top: Plan) -> list[tuple[Choice, int]]:
        """What comes before the ladder, in order, with the least that each program takes.

        PyTorch's default, the plan without recomputation, and PyTorch's splits that recompute no
        library's work, the fastest first. Such a split comes later, as a plan, if its prediction
        is slower than that of one which does.
        """
        heavy = min((one.plan.time_ns for one in self.own if not one.light), default=None)
        light = sorted(
            (one for one in self.own if one.light and (heavy is None or one.plan.time_ns <= heavy)),
            key=lambda one: (one.plan.time_ns, -one.share),
        )
        found: list[tuple[Choice, int]] = [
            (one, one.saved_bytes + self.outside_bytes) for one in light
        ]
        found.insert(1, (top, self.kept_bytes + self.outside_bytes))
        return found


class Surveyed(Exception):
    """Carries a survey out of a compilation that goes no further."""

    def __init__(self, found: Survey) -> None:
        super().__init__()
        self.survey = found


def survey(task: Task) -> None:
    """Look at a joint graph and end its compilation.

    Raises
    ------
    Surveyed
        Always, with what was found.
    """
    joint = task.joint
    late = range(joint.boundary + 1, len(joint.graph.ops))
    inputs = set(joint.ends.primals)
    kept = [node for node in saved_nodes(joint, late) if node not in inputs]
    own = own_splits(task)
    raise Surveyed(
        Survey(
            joint.graph, task.digest(), task.budget_bytes, own, task.resident_bytes,
            saved_bytes(kept),
        )
    )  # fmt: skip
