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
from ...frontends.torch.costs.meter import measure_step_time
from ...frontends.torch.costs.synthetic import is_real
from ...frontends.torch.deliveries import is_accumulating
from ...frontends.torch.generators import random_states, set_random_states
from ...frontends.torch.processes import is_sharded
from ...solver.assemble import Origin, assemble
from ...solver.control import Control
from ...solver.errors import InputError, LowtideError
from ...solver.smallest import smallest_found
from ...solver.solve import solve
from ..parity.verify import scalar_loss
from ..parity.verify_measure import copy_batch
from ..replay import replay
from .calibration_cache import known, remember
from .step_times import NoisyError, calibration_of
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
_ROUNDS = (7, 40)
_ROOM = 0.8  # part of the free memory that copy and step may take


def calibrate(
    captured: Captured, batch: Any, *, plain: bool = True, cache: bool = True
) -> Captured:
    """The same step with measured times of whole steps (`Graph.calibration`).

    Takes some seconds: plans for five budgets are made and run in turns. Where steps cannot be
    run here (too little memory for a step without recomputation beside a copy of the model, a
    sharded model, inputs without data), or a busy machine makes their times say nothing, one line
    in the log says why and the step comes back as it is: its predictions are then sums of op times.

    Parameters
    ----------
    captured
        A step with measured op times.
    batch
        The batch it was captured with.
    plain
        Also time the step of plain PyTorch, which calls the model's own code.
    cache
        Reuse and store results in the user's cache folder (`LOWTIDE_CACHE_DIR`).
    """
    graph, device = captured.graph, captured.device
    found = known(graph, device, plain=plain) if cache else None
    if found is None:
        reason = _obstacle(captured, batch)
        if reason:
            _log.info("overheads are told by sums of op times: %s", reason)
            return captured
        states = random_states()
        try:
            with torch.inference_mode(False), torch.enable_grad():
                found = _measured(captured, batch, plain)
        except Exception as error:
            # Models that cannot be copied, batches that cannot be run twice: plans stay valid.
            text = str(error).strip().splitlines() or [type(error).__name__]
            level = logging.WARNING if isinstance(error, NoisyError) else logging.INFO
            _log.log(level, "overheads are told by sums of op times: %s", text[0])
            return captured
        finally:
            set_random_states(states)
        if cache:
            remember(graph, device, found)
    return captured.calibrated(msgspec.structs.replace(found, plain_ns=found.plain_ns or -1))


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


def _measured(captured: Captured, batch: Any, plain: bool) -> Calibration:
    keep_all = _solved(captured.graph, "max")
    # One copy of the model for all of them; its parameters' gradients are dropped with it.
    original = replay(captured, keep_all)
    twin, own = copy.deepcopy(original), copy_batch(batch)
    theirs, step = changed_by(original, batch), twin.captured
    for found in shared(theirs, changed_by(twin, own)):
        raise refusal(found.name)
    plans = [keep_all, *_tight_plans(captured.graph)]
    keep = is_accumulating(captured.graph)
    calls = {
        str(place): _step(replay(step, plan), own, keep=keep) for place, plan in enumerate(plans)
    }
    # Everything is told against the first: two modules of it, because where the memory of one
    # happens to lie makes up to some percent.
    calls["again"] = _step(replay(step, plans[0]), own, keep=keep)
    if plain:
        call = _step(twin, own, keep=keep, call=step.call)
        reason = _entangled(step, call, theirs)
        if reason:
            _log.info("the step of plain PyTorch is not timed: %s", reason)
        else:
            calls["plain"] = call
    clock = cpu_clock()
    first = measure_step_time(calls, 1, warmup=2, device=captured.device, clock=clock)
    rounds = int(_STEPS_S / max(1e-9, sum(seconds[0] for seconds in first.values())))
    rounds = min(max(rounds, _ROUNDS[0]), _ROUNDS[1])
    op_ns = [plan.time_ns for plan in plans]
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for last in (False, True):
        more = measure_step_time(calls, rounds, warmup=0, device=captured.device, clock=clock)
        for name, values in more.items():
            seconds[name] += values
        both = [(a + b) / 2 for a, b in zip(seconds["0"], seconds["again"], strict=True)]
        try:
            timed = calibration_of(
                op_ns, [seconds[str(place)] for place in range(len(plans))], both,
                seconds.get("plain"),
            )  # fmt: skip
        except NoisyError:
            if last:
                raise
            rounds *= 2
        else:
            break
    if "plain" in calls or not plain:
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
        output = module(*args, **kwargs) if call is None else call(args, kwargs)
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
