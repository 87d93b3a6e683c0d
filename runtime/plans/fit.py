"""The short way: capture, solve and replay in one call."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...frontends.torch.capture import capture, with_times
from ...solver.arguments import checked_arguments
from ...solver.errors import InputError
from ...solver.live import live_line
from ...solver.plan import Stop
from ...solver.schedule import Schedule
from ...solver.simulate import simulate
from ...solver.units import parse_budget
from ..distributed.ranks import in_group, is_first, plan_together
from ..measure.calibrate import calibrate
from ..module import build_module
from ..wiring import Planned
from .plan_cache import solve_cached
from .settings import Settings, solving
from .shapes import Shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ...frontends.torch.captured import Captured
    from ...frontends.torch.optimizer_state import OptimizerLike
    from ...solver.plan import Plan
    from ..distributed.ranks import Group
    from ..module import ReplayModule
    from .settings import OnNewShape

_log = logging.getLogger(__name__)


@checked_arguments
def fit(
    model: nn.Module,
    batch: Any,
    *,
    memory_budget: str | int,
    loss_fn: Callable[..., Any] | None = None,
    shapes: Sequence[Any] = (),
    on_new_shape: OnNewShape = "plan",
    max_plans: int = 16,
    extra_resident_bytes: int = 0,
    optimizer: OptimizerLike | None = None,
    accumulate: bool = False,
    times: Literal["roofline", "measured", "calibrated"] = "calibrated",
    time_limit: float = 60.0,
    seed: int = 0,
    group: Group = "default",
    quiet: bool = False,
) -> ReplayModule:
    """A drop-in module whose training step stays under a memory budget.

    A plan holds for one kind of call: shapes, types and structure of the arguments, modes,
    ambient autocast, which parameters are trained. Another kind (the smaller last batch of an
    epoch, a layer that is frozen) gets a plan of its own, within the same budget in bytes, when it
    is first seen; one line in the log then says what is new and how long planning took. Calls
    under `no_grad`, or in eval mode if `model` is in training mode now, run the plain model and are
    never planned. Changes of the module itself (code, hooks, children, tied weights, shapes of
    parameters) are refused, and so is a number among the arguments that no plan knows. Plans are
    kept in the user's cache folder (`LOWTIDE_CACHE_DIR`).

    Parameters
    ----------
    model
        The module, in the mode in which it will be trained. It is wrapped, not copied.
    batch
        A tuple of positional arguments, a dict of keyword arguments, or a single tensor.
    memory_budget
        Device memory of the step, parameters and gradients included: `6GiB`, bytes, or a
        percentage: resident bytes + 60% of what the rest takes without recomputation. A percentage
        is turned into bytes once, for `batch`, and then holds for every shape.
    loss_fn
        `loss_fn(out)` or `loss_fn(out, batch)`; the module then returns the loss.
    shapes
        Further example batches, planned now instead of when they are first seen.
        `ReplayModule.prepare` does the same later.
    on_new_shape
        What a new kind of call gets: `plan` it, run it `plain` (without bound on its memory; said
        once), or `refuse` it with a `ReplayError`.
    max_plans
        Plans kept in memory beside the first; the one used longest ago is dropped.
    extra_resident_bytes
        Bytes always in memory beside the step's own tensors.
    optimizer
        Its state counts: a name such as `adamw`, an optimizer, a list of them, or a class.
    accumulate
        True: for training that adds up gradients over several batches before it steps, so that
        later ones find gradients in memory. False: every step begins without gradients.
    times
        Where op times come from: a roofline model, or runs of every op (`measured`). `calibrated`
        also runs whole steps, of the plan too, on a copy of the model, and tells overheads by
        them; calls that are first seen later do without.
    time_limit
        Seconds for the solver, for each plan. Ctrl-C ends a solve, too; one line in the log then
        tells of the best plan so far, with which all goes on.
    seed
        The solver's seed.
    group
        Processes that share one plan: the first one measures and solves, and all must call this
        with the same model and batch shape. "default": those of the default process group, if
        there is one. None: this process plans by itself. Kinds of calls that are first seen later
        are planned by each process alone.
    quiet
        True: no lines on stderr say what goes on, and at last what the plan takes and costs, as
        they do if stderr is a terminal. The last is in the log, too (level INFO).

    Raises
    ------
    CaptureError
        If the step cannot be captured exactly.
    InfeasibleError
        If no schedule within the budget was found; it says which budget can be met. From a later
        call, too, if its kind is new.
    """
    if times not in ("roofline", "measured", "calibrated"):
        raise InputError(f"times={times!r}: choose roofline, measured or calibrated")
    if len(shapes) > max_plans:
        raise InputError(f"{len(shapes)} further shapes are given and max_plans is {max_plans}")
    settings = Settings(
        budget_bytes=0,  # until the first step is known
        extra_resident_bytes=extra_resident_bytes,
        times="roofline" if times == "roofline" else "measured",
        solving=solving(time_limit, seed),
        on_new_shape=on_new_shape,
        max_plans=max_plans,
        accumulate=accumulate,
    )

    def start(example: Any) -> Captured:
        say("capturing the step")
        return capture(
            model,
            example,
            loss_fn,
            times="none",
            extra_resident_bytes=extra_resident_bytes,
            optimizer=optimizer,
            accumulate=accumulate,
        )

    def measured(done: int, total: int, operator: str) -> None:
        say(f"measuring operators: {done} of {total}  {operator}")

    def finish(captured: Captured, example: Any, budget: str | int) -> tuple[Captured, Plan]:
        captured = with_times(captured, settings.times, None if live is None else measured)
        graph = captured.graph
        budget_bytes = parse_budget(
            budget,
            resident_bytes=graph.resident_bytes,
            peak_bytes=simulate(graph, Schedule.keep_everything(graph)).peak_bytes,
        )
        say(f"planning {graph.name} ({len(graph.ops):,} operators)")
        plan = solve_cached(graph, budget_bytes, settings.solving, progress=live)[0]
        wanted = times == "calibrated" and plan.stopped_by is not Stop.INTERRUPTED
        if wanted and plan.time_ns > plan.base_time_ns:
            say("timing whole steps under a few plans")
            captured = calibrate(captured, example, [plan], plain=False)
            plan = msgspec.structs.replace(plan, calibration=captured.graph.calibration)
        return captured, plan

    def planned(example: Any, budget: str | int) -> tuple[Captured, Plan]:
        made = plan_together(lambda: start(example), lambda c: finish(c, example, budget), group)
        if is_first():
            _log.info("planned %s: %s", made[1].graph_name, made[1].summary)
        leave(made[1])
        return made

    def leave(plan: Plan) -> None:
        if live is not None:
            live.print(f"{plan.graph_name}: {plan.summary}")

    def say(text: str) -> None:
        if live is not None:
            live.say(text)

    with live_line(wanted=not quiet and is_first()) as live:
        captured, plan = planned(batch, memory_budget)
        settings = replace(
            settings,
            budget_bytes=plan.budget_bytes,
            # The optimizer's state is the same for every plan.
            extra_resident_bytes=captured.graph.extra_resident_bytes,
        )
        plans = Shapes(settings)
        module = build_module(captured, plan, plans)
        for number, further in enumerate(shapes, 1):
            if in_group(group):
                made = planned(further, plan.budget_bytes)
                plans.others.insert(0, Planned.of(*made, exact=True))
            else:
                say(f"planning another kind of call: {number} of {len(shapes)}")
                count = len(plans.others)
                module.prepare(further)
                if len(plans.others) > count:
                    leave(plans.others[0].plan)
    return module
