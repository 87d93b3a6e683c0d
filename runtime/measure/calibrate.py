"""Times whole steps of a captured model under a few plans, so that predictions are of whole steps.

The steps run on a copy of the model: nothing of the caller's changes, and what would change the
original through its copy is not run. They take turns, and each is compared with the steps beside
it, so that a clock that drifts cancels out.
"""

from __future__ import annotations

import copy
import logging
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...frontends.torch.batches import split_batch
from ...frontends.torch.costs.bench import available_bytes, cpu_clock
from ...frontends.torch.costs.synthetic import is_real
from ...frontends.torch.deliveries import is_accumulating
from ...frontends.torch.generators import random_states, set_random_states
from ...frontends.torch.processes import is_sharded
from ...frontends.torch.refills import with_own_holders
from ...solver.assemble import Origin, assemble
from ...solver.calibration import digest_of
from ...solver.control import Control
from ...solver.errors import InputError, LowtideError
from ...solver.smallest import smallest_found
from ...solver.solve import solve
from ..parity.verify import scalar_loss
from ..parity.verify_measure import copy_batch
from ..replay import replay
from .calibration_cache import known, remember
from .rounds import Contender, run_rounds
from .step_times import NoisyError
from .twins import KeptApart, changed_by, refusal, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...frontends.torch.captured import Captured
    from ...solver.calibration import Calibration
    from ...solver.graph import Graph
    from ...solver.plan import Plan
    from ..module import ReplayModule
    from .twins import Changed

_log = logging.getLogger(__name__)

# Budgets of the plans, as parts of the way from the smallest one to the peak. Of sets of one to
# four that were tried on ten models these left the smallest errors between them: the curve bends
# most near the smallest budget. That one itself ends the line: its steps may take three times as
# long.
SHARES = (0.6, 0.35, 0.15, 0.05)
_SEARCH_S = 1.0  # for the smallest budget, and for each plan
_STEPS_S = 6.0
_MORE_S, _EACH_S = 1.0, 1.0  # where only plans are timed that somebody asked for; for each of them
_ROOM = 0.8  # part of the free memory that copy and step may take


def calibrate(
    captured: Captured,
    batch: Any,
    plans: Sequence[Plan] = (),
    *,
    plain: bool = True,
    cache: bool = True,
) -> Captured:
    """The same step with measured times of whole steps (`Graph.calibration`).

    Takes some seconds: plans for five budgets are made and run in turns. Where steps cannot be
    run here (too little memory for a step without recomputation beside a copy of the model, a
    sharded model, inputs without data), or a busy machine makes their times say nothing, one line
    in the log says why and the step comes back as it is: its predictions are then sums of op times,
    or go by what was known before.

    Parameters
    ----------
    captured
        A step with measured op times.
    batch
        The batch it was captured with.
    plans
        Plans of the step whose own steps are timed as well, if they were not yet.
    plain
        Also time the step of plain PyTorch, which calls the model's own code.
    cache
        Reuse and store results in the user's cache folder (`LOWTIDE_CACHE_DIR`).
    """
    graph, device = captured.graph, captured.device
    before = (known(graph, device, plain=plain) if cache else None) or graph.calibration
    found, wanted = before, _untimed(plans, before)
    if before is None or wanted:
        reason, level = _obstacle(captured, batch), logging.INFO
        states = random_states()
        try:
            if not reason:
                with torch.inference_mode(False), torch.enable_grad():
                    found = _measured(captured, batch, wanted, before, plain)
        except Exception as error:
            # Models that cannot be copied, batches that cannot be run twice: plans stay valid.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            level = logging.WARNING if isinstance(error, NoisyError) else logging.INFO
        finally:
            set_random_states(states)
        if reason:
            told = "sums of op times" if before is None else "steps of other plans"
            _log.log(level, "overheads are told by %s: %s", told, reason)
        elif cache and found is not None:
            remember(graph, device, found)
    if found is None:
        return captured
    return captured.calibrated(msgspec.structs.replace(found, plain_ns=found.plain_ns or -1))


def _untimed(plans: Sequence[Plan], known: Calibration | None) -> list[Plan]:
    """Those that compute something again and whose own steps were not timed, each once."""
    found = {digest_of(plan.steps): plan for plan in plans if plan.time_ns > plan.base_time_ns}
    timed = {one.plan for one in known.timed} if known is not None else set()
    return [plan for digest, plan in found.items() if digest not in timed]


def _obstacle(captured: Captured, batch: Any) -> str:
    """Why steps cannot be run here, empty if they can."""
    if is_sharded(captured.model):
        return "the model is sharded"
    tensors = [*captured.model.parameters(), *captured.model.buffers()]
    tensors += [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if any(not is_real(tensor) for tensor in tensors):
        return "parameters or inputs have no data"
    graph = captured.graph
    needed = graph.resident_bytes + _solved(graph, "max").peak_bytes
    free = available_bytes(captured.device)
    if needed > _ROOM * free:
        return f"a copy of the model and a plain step take {needed} B, and {free} B are free"
    return ""


def _measured(
    captured: Captured, batch: Any, wanted: Sequence[Plan], before: Calibration | None, plain: bool
) -> Calibration:
    """What is known before, and the plans that are wanted; all about the step if nothing is."""
    keep_all = _solved(captured.graph, "max")
    # One copy of the model for all of them; its parameters' gradients are dropped with it.
    original = replay(captured, keep_all)
    twin, own = copy.deepcopy(original), copy_batch(batch)
    theirs, step = changed_by(original, batch), twin.captured
    for found in shared(theirs, changed_by(twin, own)):
        raise refusal(found.name)
    keep = is_accumulating(captured.graph)

    def run(plan: Plan) -> Callable[[], Any]:
        return _step(replay(step, plan), own, keep=keep)

    tight = _tight_plans(captured.graph) if before is None else []
    contenders = [Contender(run(plan), plan.time_ns) for plan in tight]
    contenders += [Contender(run(plan), plan.time_ns, digest_of(plan.steps)) for plan in wanted]
    theirs_too = None
    if plain and (before is None or before.plain_ns > 0):
        call = _step(twin, own, keep=keep, call=step.call)
        reason = _entangled(step, call, theirs)
        if reason:
            _log.info("the step of plain PyTorch is not timed: %s", reason)
        else:
            theirs_too = call
    timed = run_rounds(
        keep_all.time_ns,
        (run(keep_all), run(keep_all)),
        contenders,
        theirs_too,
        before,
        seconds=(_STEPS_S if before is None else _MORE_S) + _EACH_S * len(wanted),
        device=captured.device,
        clock=cpu_clock(),
    )
    if theirs_too is not None or not plain or before is not None:
        return timed
    return msgspec.structs.replace(timed, plain_ns=0)  # it cannot be timed: not to be tried again


def _entangled(step: Captured, call: Callable[[], Any], theirs: Sequence[Changed]) -> str:
    """Why the code of the copied model cannot be run again and again, empty if it can."""
    changing = step.program.reads.changing
    if changing:
        return f"it changes {' and '.join(sorted(changing))}"
    try:
        with KeptApart(theirs):
            call()
    except InputError as error:
        return str(error)
    return ""


def _tight_plans(graph: Graph) -> list[Plan]:
    """Plans that compute more and more again, none if nothing can be saved."""
    resident = graph.resident_bytes
    most = _solved(graph, "max").peak_bytes
    smallest = smallest_found(graph, 0, Control(_SEARCH_S))
    least = smallest.peak + resident
    plans: list[Plan] = []

    def keep(plan: Plan) -> None:
        if plan.time_ns > max([plan.base_time_ns, *(other.time_ns for other in plans)]):
            plans.append(plan)

    for share in SHARES:
        try:
            plan = _solved(graph, round(least + share * (most - least)), time_limit=_SEARCH_S)
        except LowtideError:
            continue  # the search for a plan has less luck than that for the smallest budget
        keep(plan)
    keep(assemble(graph, least, smallest.computes, Origin("smallest", 0, 1, _SEARCH_S)))
    return plans


def _solved(graph: Graph, budget: int | str, time_limit: float = 60.0) -> Plan:
    """A plan; Ctrl-C, with which a solve ends early and returns what it has, goes on from here."""
    pressed = threading.Event()
    try:
        return solve(graph, budget, time_limit=time_limit, interrupt=pressed)
    finally:
        if pressed.is_set():
            raise KeyboardInterrupt


def _step(
    module: ReplayModule, batch: Any, *, keep: bool, call: Callable[..., Any] | None = None
) -> Callable[[], Any]:
    """Forward and backward; gradients are dropped before it, unless steps add to them."""
    _, args, kwargs = split_batch(batch)
    owners = [*module.parameters(), *pytree.tree_leaves((args, kwargs))]
    if isinstance(module.captured.loss_fn, nn.Module):
        owners += module.captured.loss_fn.parameters()
    owners = [leaf for leaf in owners if isinstance(leaf, torch.Tensor) and leaf.is_leaf]

    def run() -> None:
        if not keep:
            for owner in owners:
                owner.grad = None
        own = with_own_holders(args, kwargs)
        output = module(*own[0], **own[1]) if call is None else call(*own)
        heads = _heads(output)
        torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])

    return run


def _heads(output: Any) -> list[torch.Tensor]:
    """The loss; without one, every output that can get a gradient."""
    try:
        loss = scalar_loss(output)
    except InputError:
        loss = None
    if loss is not None and loss.requires_grad:
        return [loss]
    leaves = pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
