"""One row of the table: a model captured, planned, trained by the plan and plainly."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, InfeasibleError, NoPlanError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.smallest import smallest_budget
from lowtide.solver.solve import solve
from tests.plans import plan_of, recomputing

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph
    from lowtide.solver.plan import Plan

    from .models import Entry

BUDGETS, STEPS = ("50%", "60%", "70%", "80%"), 2


@dataclass(frozen=True)
class Row:
    """What was found; numbers are -1 where the model was refused.

    Attributes
    ----------
    model, family, ops
        Name, family, and ops of the captured graph.
    exact
        Whether steps of AdamW agree with plain PyTorch in every bit.
    reason
        Why it was refused, or what the first difference is.
    recomputed
        Ops that the plan runs again.
    plain_bytes, replayed_bytes, predicted_bytes
        Measured peak of a plain and of a replayed step, and the plan's, without what is resident.
    budget
        The first of `BUDGETS` for which a plan was found, or the smallest of all, in tenths of a
        percent.
    run_again
        Where the plan runs nothing again: ops that another schedule does, by which the model was
        trained as well.
    """

    model: str
    family: str
    ops: int = -1
    exact: bool = False
    reason: str = ""
    recomputed: int = -1
    plain_bytes: int = -1
    replayed_bytes: int = -1
    predicted_bytes: int = -1
    budget: str = ""
    run_again: int = 0

    @property
    def saved_percent(self) -> float:
        """Share of the plain step's peak that the plan saves."""
        return 100 * (1 - self.replayed_bytes / self.plain_bytes)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it."""
        row = asdict(self)
        if self.ops > 0:
            row["saved_percent"] = round(self.saved_percent, 1)
            row["predicted_is_measured"] = self.predicted_bytes == self.replayed_bytes
        return row


def without_folders(text: str) -> str:
    """The text with files named as the library names them, wherever it is installed."""
    return re.sub(r"(?:/[^\s/:]+)+/site-packages/", "", text)


def planned(graph: Graph, seconds: float, longer: float) -> tuple[str, Plan]:
    """A plan for the first of `BUDGETS` that has one, or for the smallest budget that is found.

    Parameters
    ----------
    seconds
        Of the solver, for each of `BUDGETS`.
    longer
        The same for the smallest budget.
    """
    for budget in BUDGETS:
        try:
            return budget, solve(graph, budget, time_limit=seconds)
        except (InfeasibleError, NoPlanError):
            continue
    whole = simulate(graph, Schedule.keep_everything(graph)).peak_bytes - graph.resident_bytes
    share = (smallest_budget(graph) - graph.resident_bytes) / whole
    for tenths in dict.fromkeys((min(1000, math.ceil(1000 * share)), 1000)):
        budget = f"{tenths / 10:g}%"
        try:
            return budget, solve(graph, budget, time_limit=longer)
        except (InfeasibleError, NoPlanError):
            continue
    raise NoPlanError(f"no plan in {longer} s, not even without recomputation")


def study(name: str, entry: Entry, seconds: float, longer: float) -> Row:
    """The row of a model.

    Parameters
    ----------
    seconds
        Of the solver for each budget, and of the profile.
    longer
        Of the solver for the smallest budget, where nothing was found before.
    """
    model = entry.make()
    batches = [entry.batch(step) for step in range(STEPS)]
    try:
        captured = capture(model, batches[0])
    except CaptureError as error:
        return Row(name, entry.family, reason=without_folders(str(error)))
    captured = profile(captured, budget_s=seconds)
    graph = captured.graph
    budget, plan = planned(graph, seconds, longer)
    found = verify(model, replay(captured, plan), batches, repeats=1)
    reason, run_again = found.first_difference or "", 0
    if not plan.schedule.recomputes():
        schedule = recomputing(graph, len(graph.ops))
        module = replay(captured, plan_of(graph, schedule))
        again = verify(model, module, batches, measure=False)
        reason, run_again = reason or again.first_difference or "", schedule.recomputes()
    return Row(
        name,
        entry.family,
        len(graph.ops),
        not reason,
        reason,
        plan.schedule.recomputes(),
        found.plain_peak_bytes,
        found.replay_peak_bytes,
        found.predicted_peak_bytes,
        budget,
        run_again,
    )
