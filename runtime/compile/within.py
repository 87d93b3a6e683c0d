"""Compiles a graph with the plan whose compiled program is within the budget."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from torch._functorch import config as functorch_config

from ...solver.errors import InfeasibleError, LowtideError
from ...solver.smallest import single_op_bound
from ...solver.units import format_bytes, format_percent
from .dry import no_kernels, runs_kernels, setting
from .ladder import Candidate, climb_down, rungs
from .observe import Watch
from .planners import given, keep_everything, plan_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from ...solver.plan import Plan
    from .partitioner import Partitioner, Planned
    from .planners import Planner

_log = logging.getLogger(__name__)
SOLVES = 12  # parts of the time limit: one for each plan
LAST = 3  # parts for a budget for which one part gave no plan
_PLAIN_OPTIONS = {"config_patches", "compile_region_name"}
_peaks: dict[tuple[Any, ...], int] = {}  # of programs, by graph, configuration and plan
_compiling: ContextVar[bool] = ContextVar("_compiling", default=False)


class _Program(NamedTuple):
    """What was compiled, and what was planned for it; None where there is no backward."""

    compiled: Any
    planned: Planned | None


def compile_within(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    partitioner: Partitioner,
    patches: Mapping[str, Any],
    **options: Any,
) -> Callable[..., Any]:
    """Compile a graph with inductor, by the plan that `ladder` finds for the budget.

    Programs are made without kernels to be followed, and once with kernels at the end. Without a
    limit (`max`), and where programs cannot be followed, there is one plan, for the budget itself.

    Parameters
    ----------
    gm, example_inputs
        The graph, as dynamo hands it over.
    partitioner
        What splits the joint graph.
    patches
        Inductor's configuration, `partitioner` in it.
    options
        What else inductor takes that is none of its compilers.

    Raises
    ------
    InfeasibleError
        If no plan was found whose compiled program is within the budget; the smallest peak of
        those that were followed is named, which is a budget that can be met.
    """
    token = _compiling.set(True)
    try:
        job = _Job(gm, example_inputs, partitioner, patches, options)
        program = job.within() if job.can_be_followed else job.program()
        if program.planned is not None:
            partitioner.planned.append(program.planned)
    finally:
        _compiling.reset(token)
    return program.compiled  # type: ignore[no-any-return]


@contextlib.contextmanager
def compiling_within(partitioner: Partitioner) -> Iterator[None]:
    """Meanwhile, what inductor compiles is compiled by `compile_within`."""
    from torch._inductor import compile_fx as module

    plain, own = module.compile_fx, {"custom_partitioner_fn": partitioner}

    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        # It calls itself, and other ways into inductor bring a compiler of their own.
        if _compiling.get() or args or not kwargs.keys() <= _PLAIN_OPTIONS:
            return plain(model_, example_inputs_, *args, **kwargs)
        patches = {**(kwargs.pop("config_patches", None) or {}), **own}
        return compile_within(model_, example_inputs_, partitioner, patches, **kwargs)

    with mock.patch.object(module, "compile_fx", compile_fx):
        yield


class _Job:
    """One graph to compile."""

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        partitioner: Partitioner,
        patches: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.gm, self.example_inputs = gm, example_inputs
        self.partitioner, self.patches, self.options = partitioner, patches, options
        self.dry = not runs_kernels(patches)
        self.graph_digest = ""
        self.late = False  # whether more time for solving might find another plan

    @property
    def can_be_followed(self) -> bool:
        """Whether there may be a backward, a limit, and a program in Python."""
        trains = torch.is_grad_enabled() and any(
            isinstance(item, torch.Tensor) and item.requires_grad for item in self.example_inputs
        )
        limited = not self.partitioner.unlimited
        return trains and limited and not setting("cpp_wrapper", self.patches)

    def program(self, planner: Planner | None = None, *, dry: bool = False) -> _Program:
        """Compile by a planner's plan; None: by a plan for the budget itself."""
        from torch._inductor.compile_fx import compile_fx

        watch = Watch()
        planned = self.partitioner.planned
        before = len(planned)
        own = copy.copy(self.gm)  # inductor changes what it gets
        own.graph = copy.deepcopy(self.gm.graph)
        try:
            with (
                no_kernels() if dry else contextlib.nullcontext(),
                self.partitioner.planning(planner),
                # A step from the cache of whole steps would come without its plan.
                functorch_config.patch(
                    enable_autograd_cache=False, force_non_lazy_backward_lowering=True
                ),
            ):
                compiled: Any = compile_fx(
                    own, self.example_inputs, inner_compile=watch,
                    config_patches=dict(self.patches), **self.options,
                )  # fmt: skip
        except BaseException:
            del planned[before:]
            raise
        if len(planned) == before:
            return _Program(compiled, None)
        last = planned.pop()
        del planned[before:]
        peak = watch.peak_bytes(last.tangents, torch.device(last.graph.meta["device"]))
        if peak is not None:
            last = last._replace(peak_bytes=peak + last.resident_bytes)
        self.graph_digest = self.graph_digest or watch.digest()
        return _Program(compiled, last)

    def within(self) -> _Program:
        """Compile by the plan that is taken for the budget."""
        first = self._first()
        if first.planned is None or first.planned.peak_bytes is None:
            return self.program()
        budget = first.planned.budget_bytes - self.partitioner.reserve_bytes
        seen = self._candidates(first.planned, first.planned.peak_bytes, budget)
        found = seen[-1]
        if found.peak_bytes > budget:
            least = min(one.peak_bytes for one in seen) + self.partitioner.reserve_bytes
            raise InfeasibleError(
                f"no plan was found that is within the budget once it is compiled: of {len(seen)} "
                f"plans the smallest peak is {least} bytes ({format_bytes(least)}); give that as "
                f"the budget{', or a longer time_limit' if self.late else ''}",
                smallest_bytes=least,
            )
        made = self.program(given(found.plan))
        assert made.planned is not None
        if not self.dry or made.planned.peak_bytes in (None, found.peak_bytes):
            return made
        _log.info("%s: kernels change its peak: following with them", made.planned.graph.name)
        self.dry = False
        return self.within()

    def _first(self) -> _Program:
        """The program without recomputation."""
        try:
            return self.program(keep_everything, dry=self.dry)
        except LowtideError:
            raise
        except Exception as error:  # whatever inductor may raise without kernels
            if not self.dry:
                raise
            _log.info("inductor needs its kernels to be followed: %r", error)
            self.dry = False
            return self.program(keep_everything)

    def _candidates(self, first: Planned, peak_bytes: int, budget: int) -> list[Candidate]:
        """The candidates that a budget looks at, until the time for solving is over."""
        graph, settings = first.graph, self.partitioner.settings
        left = settings.time_limit
        share = left / SOLVES
        settings = replace(settings, time_limit=share)
        floor, _ = single_op_bound(graph, any_order=True)

        def probe(rung: int, above: Plan) -> Candidate | None:
            nonlocal left
            if left <= 0:
                self.late = True
                return None
            start = time.perf_counter()
            plan = plan_for(graph, rung, settings, above)
            if plan is None:  # the ladder would end here: once more, with more of the time
                plan = plan_for(graph, rung, replace(settings, time_limit=LAST * share), above)
            # The first one of an installation compiles the search, which is no solving.
            left -= min(time.perf_counter() - start, settings.time_limit)
            # More time might find one, unless it is proven that there is none.
            self.late = self.late or plan is None
            return None if plan is None else self._candidate(plan)

        everything = Candidate(first.plan, peak_bytes)
        return climb_down(everything, rungs(first.plan.peak_bytes, floor), budget, probe)

    def _candidate(self, plan: Plan) -> Candidate | None:
        """A plan with the peak of its program, followed once in a process."""
        patches = {k: v for k, v in self.patches.items() if v is not self.partitioner}
        key = (self.dry, self.graph_digest, str(sorted(patches.items())), plan.steps)
        peak = _peaks.get(key)
        if peak is None:
            planned = self.program(given(plan), dry=self.dry).planned
            if planned is None or planned.peak_bytes is None:
                return None
            peak = planned.peak_bytes
            if self.graph_digest:
                _peaks[key] = peak
        _log.info(
            "%s: peak %s when compiled, %s predicted, %s more time",
            plan.graph_name,
            format_bytes(peak),
            format_bytes(plan.peak_bytes),
            format_percent(plan.overhead),
        )
        return Candidate(plan, peak)
