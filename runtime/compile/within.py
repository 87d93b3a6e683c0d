"""Compiles a graph until what the compiler made of its plan is within the budget."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import config as functorch_config

from ...solver.errors import InfeasibleError, NoPlanError
from ...solver.units import format_bytes
from .observe import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from .partitioner import Partitioner, Planned

_log = logging.getLogger(__name__)

ATTEMPTS = 5


def compile_within(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    partitioner: Partitioner,
    patches: Mapping[str, Any],
) -> Callable[..., Any]:
    """Compile a graph with inductor; plan again where the result is above the budget.

    The bytes by which the peak of the compiled program is above the budget are taken from the
    budget of the next plan, at most `ATTEMPTS` plans. `max` is no limit: what is compiled is kept.

    Parameters
    ----------
    gm, example_inputs
        The graph, as dynamo hands it over.
    partitioner
        What splits the joint graph.
    patches
        Inductor's configuration, `partitioner` in it.

    Raises
    ------
    InfeasibleError
        If no plan was found whose compiled program is within the budget; the smallest peak of
        those that were compiled is named.
    """
    from torch._inductor.compile_fx import compile_fx

    first = partitioner.reserve_bytes
    peaks: list[int] = []
    try:
        for _ in range(ATTEMPTS):
            watch = Watch()
            before = len(partitioner.planned)
            own = copy.copy(gm)  # inductor changes what it gets
            own.graph = copy.deepcopy(gm.graph)
            # A step from the cache of whole steps would come without its plan.
            with functorch_config.patch(
                enable_autograd_cache=False, force_non_lazy_backward_lowering=True
            ):
                compiled: Any = compile_fx(
                    own, example_inputs, inner_compile=watch, config_patches=dict(patches)
                )
            if len(partitioner.planned) == before:
                return compiled  # type: ignore[no-any-return]  # no backward to plan
            planned = _observed(partitioner.planned.pop(), watch)
            del partitioner.planned[before:]
            over = 0 if planned.peak_bytes is None else planned.peak_bytes - planned.budget_bytes
            if over <= 0 or partitioner.unlimited:
                partitioner.planned.append(planned)
                return compiled  # type: ignore[no-any-return]
            assert planned.peak_bytes is not None
            peaks.append(planned.peak_bytes)
            _log.info(
                "%s: %s when compiled, %s above the budget: planning again",
                planned.graph.name,
                format_bytes(planned.peak_bytes),
                format_bytes(over),
            )
            partitioner.reserve_bytes += over
    except (InfeasibleError, NoPlanError) as error:
        if not peaks:
            raise
        cause: Exception | None = error
    else:
        cause = None
    finally:
        partitioner.reserve_bytes = first
    least = min(peaks)
    raise InfeasibleError(
        f"no plan was found that is within the budget once it is compiled: of {len(peaks)} plans "
        f"the smallest peak is {least} bytes ({format_bytes(least)}); give that as the budget",
        smallest_bytes=least,
    ) from cause


def _observed(planned: Planned, watch: Watch) -> Planned:
    """With the peak of what was compiled."""
    device = torch.device(planned.graph.meta["device"])
    peak = watch.peak_bytes(planned.tangents, device)
    if peak is None:
        return planned
    return planned._replace(peak_bytes=peak + planned.resident_bytes)
