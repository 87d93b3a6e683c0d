"""Steps of given plans are timed, and predictions go by them from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...frontends.torch.captured import Captured
from ...solver.arguments import checked_arguments
from ...solver.check import check_schedule
from ...solver.errors import InputError, a_type
from ...solver.plan import Plan
from .calibrate import calibrate

if TYPE_CHECKING:
    from collections.abc import Iterable


@checked_arguments
def time_plans(
    captured: Captured, batch: Any, plans: Iterable[Plan], *, cache: bool = True
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
    InputError
        If what is given is no captured step, or are no plans.
    """
    if not isinstance(captured, Captured):
        raise InputError(f"time_plans takes a captured step first, not {a_type(type(captured))}")
    wrong = "time_plans takes a list of plans"
    if isinstance(plans, Plan):
        raise InputError(f"{wrong}: write [plan] for one")
    try:
        plans = list(plans)
    except TypeError:
        raise InputError(f"{wrong}, not {a_type(type(plans))}") from None
    other = next((plan for plan in plans if not isinstance(plan, Plan)), None)
    if other is not None:
        raise InputError(f"{wrong}, and {a_type(type(other))} is among them")
    for plan in plans:
        check_schedule(captured.graph, plan)
    captured = calibrate(captured, batch, plans, cache=cache)
    new = captured.graph.calibration
    return captured, [msgspec.structs.replace(plan, calibration=new) for plan in plans]
