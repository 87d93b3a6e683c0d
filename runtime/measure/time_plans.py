"""Steps of given plans are timed, and predictions go by them from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...solver.check import check_schedule
from .calibrate import calibrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...frontends.torch.captured import Captured
    from ...solver.plan import Plan


def time_plans(
    captured: Captured, batch: Any, plans: Sequence[Plan], *, cache: bool = True
) -> tuple[Captured, list[Plan]]:
    """Time the steps of plans, on a copy of the model, in turns with plain PyTorch.

    Before, a plan's overhead is a prediction from steps of other plans (`times="calibrated"`), or
    from op times. Now its own steps count, too: `Plan.measured_overhead` and `measured_over_plain`
    are what was measured, and `Plan.overhead`, `gap` and bounds go by a calibration that contains
    it. Steps of up to 100 ms take one to three seconds for each plan, the first time. Where steps
    cannot be run, or vary too much, a line in the log says why and predictions stay as they are.

    Parameters
    ----------
    captured
        The step, with measured op times.
    batch
        The batch it was captured with.
    plans
        Plans of the step. Plans that compute nothing again are known already.
    cache
        Reuse and store results in the user's cache folder (`LOWTIDE_CACHE_DIR`).

    Returns
    -------
    tuple of Captured and list of Plan
        The step and the plans, with the new calibration.

    Raises
    ------
    CheckError
        If a plan is of another graph, or cannot run.
    """
    for plan in plans:
        check_schedule(captured.graph, plan)
    captured = calibrate(captured, batch, plans, cache=cache)
    new = captured.graph.calibration
    return captured, [msgspec.structs.replace(plan, calibration=new) for plan in plans]
