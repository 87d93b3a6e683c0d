"""One row of the table: a model captured, planned, trained by the plan and plainly."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.profile import profile
from lowtide.runtime.replay import replay
from lowtide.runtime.verify import verify
from lowtide.solver.errors import CaptureError, InfeasibleError, NoPlanError
from lowtide.solver.solve import solve

if TYPE_CHECKING:
    from .models import Entry

BUDGETS, STEPS = ("50%", "60%", "70%", "80%", "100%"), 2


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
        The first of `BUDGETS` for which a plan was found.
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


def study(name: str, entry: Entry, seconds: float) -> Row:
    """The row of a model; `seconds` bounds the solver, and the profile on its own."""
    model = entry.make()
    try:
        captured = capture(model, entry.batch(0))
    except CaptureError as error:
        return Row(name, entry.family, reason=without_folders(str(error)))
    captured = profile(captured, budget_s=seconds)
    graph = captured.graph
    for budget in BUDGETS:
        try:
            plan = solve(graph, budget, time_limit=seconds)
            break
        except (InfeasibleError, NoPlanError):
            continue
    module = replay(captured, plan)
    found = verify(model, module, [entry.batch(step) for step in range(STEPS)], repeats=1)
    return Row(
        name,
        entry.family,
        len(graph.ops),
        found.ok,
        found.first_difference or "",
        plan.schedule.recomputes(),
        found.plain_peak_bytes,
        found.replay_peak_bytes,
        found.predicted_peak_bytes,
        budget,
    )
