"""Compiles a graph with the plan whose compiled program is within the budget."""

from __future__ import annotations

import contextlib
import logging
import time
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

from ...frontends.torch.compile.private import copy_of, let_through
from ...solver.errors import InfeasibleError, LowtideError
from ...solver.smallest import single_op_bound
from ...solver.units import format_bytes, format_percent
from .dry import no_kernels, runs_kernels, setting
from .ladder import Candidate, climb_down, rungs
from .observe import Watch
from .own import Own, plan_of
from .planners import given, keep_everything, plan_for
from .survey import Survey, Surveyed, survey
from .tell import Teller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from ...solver.plan import Plan
    from .own import Choice
    from .partitioner import Partitioner
    from .planned import Planned
    from .planners import Planner

_log = logging.getLogger(__name__)
SOLVES = 12  # parts of the time limit: one for each plan
LAST = 3  # parts for a budget for which one part gave no plan
_PLAIN_OPTIONS = {"config_patches", "compile_region_name"}
_peaks: dict[tuple[Any, ...], int] = {}  # of programs, by graph, configuration and split
_compiling: ContextVar[bool] = ContextVar("_compiling", default=False)


class _NotFollowedError(Exception):
    """The peak of a program is not known."""


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
        with let_through():
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
        self.late = False  # whether more time for solving might find another plan
        self.tell = Teller()

    @property
    def can_be_followed(self) -> bool:
        """Whether there may be a backward, a limit, and a program in Python."""
        trains = torch.is_grad_enabled() and any(
            isinstance(item, torch.Tensor) and item.requires_grad for item in self.example_inputs
        )
        limited = not self.partitioner.unlimited
        return trains and limited and not setting("cpp_wrapper", self.patches)

    def _compile(self, watch: Watch) -> Any:
        from torch._inductor.compile_fx import compile_fx

        # A step from the cache of whole steps would come without its plan.
        with functorch_config.patch(
            enable_autograd_cache=False, force_non_lazy_backward_lowering=True
        ):
            return compile_fx(
                copy_of(self.gm), self.example_inputs, inner_compile=watch,
                config_patches=dict(self.patches), **self.options,
            )  # fmt: skip

    def survey(self) -> Survey | None:
        """The joint graph, before anything is compiled; None where there is no backward."""
        try:
            with self.partitioner.planning(None, survey):
                self._compile(Watch())
        except Surveyed as found:
            return found.survey
        return None

    def program(self, planner: Planner | None = None, *, dry: bool = False) -> _Program:
        """Compile by a planner's plan; None: by a plan for the budget itself."""
        watch = Watch()
        planned = self.partitioner.planned
        before = len(planned)
        try:
            with (
                no_kernels() if dry else contextlib.nullcontext(),
                self.partitioner.planning(planner),
            ):
                compiled = self._compile(watch)
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
        return _Program(compiled, last._replace(program="" if dry else watch.digest()))

    def within(self) -> _Program:
        """Compile by the plan that is taken for the budget."""
        found = self.survey()
        if found is None:
            return self.program()
        self.tell.about = f"{found.graph.name} ({len(found.graph.ops)} ops)"
        while True:
            try:
                made = self._within(found)
            except _NotFollowedError:
                return self.program()
            if made is not None:
                return made
            _log.info("%s: kernels change its peak: following with them", found.graph.name)
            self.dry = False

    def _within(self, found: Survey) -> _Program | None:
        """The program; None if it has another peak with kernels than without."""
        budget = found.budget_bytes - self.partitioner.reserve_bytes
        seen = self._candidates(found, budget)
        taken = seen[-1]
        if taken.peak_bytes > budget:
            least = min(one.peak_bytes for one in seen) + self.partitioner.reserve_bytes
            raise InfeasibleError(
                f"no plan was found that is within the budget once it is compiled: of {len(seen)} "
                f"plans the smallest peak is {least} bytes ({format_bytes(least)}); give that as "
                f"the budget{', or a longer time_limit' if self.late else ''}",
                smallest_bytes=least,
            )
        self.tell(f"compiling the kernels of a step of {format_bytes(taken.peak_bytes)}")
        made = self.program(given(taken.choice))
        assert made.planned is not None
        same = not self.dry or made.planned.peak_bytes in (None, taken.peak_bytes)
        return made if same else None

    def _candidates(self, found: Survey, budget: int) -> list[Candidate]:
        """The candidates that a budget looks at, until the time for solving is over."""
        graph, settings = found.graph, self.partitioner.settings
        left = settings.time_limit
        share = left / SOLVES
        settings = replace(settings, time_limit=share)
        floor, _ = single_op_bound(graph, any_order=True)
        top = keep_everything(graph, budget)
        known = [one.plan for one in found.own]

        def probe(rung: int, above: Plan) -> Candidate | None:
            nonlocal left
            if left <= 0:
                self.late = True
                return None
            start = time.perf_counter()
            self.tell(f"solving for {format_bytes(rung)}")
            plan = plan_for(graph, rung, settings, above, known)
            if plan is None:  # the ladder would end here: once more, with more of the time
                longer = replace(settings, time_limit=LAST * share)
                plan = plan_for(graph, rung, longer, above, known)
            # The first one of an installation compiles the search, which is no solving.
            left -= min(time.perf_counter() - start, settings.time_limit)
            # More time might find one, unless it is proven that there is none.
            self.late = self.late or plan is None
            return None if plan is None else self._candidate(found, plan)

        def first() -> Iterator[Candidate]:
            for choice, least in found.first(top):
                if least <= budget:
                    yield self._candidate(found, choice)

        places = rungs(top.peak_bytes, floor, (plan.peak_bytes for plan in known))
        seen = climb_down(first(), top, places, budget, probe)
        return seen or [self._candidate(found, top)]

    def _candidate(self, found: Survey, choice: Choice) -> Candidate:
        """A choice with the peak of its program, followed once in a process."""
        plan = plan_of(choice)
        what = f"PyTorch's own split at {choice.share:g}" if isinstance(choice, Own) else "plan"
        patches = {k: v for k, v in self.patches.items() if v is not self.partitioner}
        with inductor_config.patch(custom_partitioner_fn=None):
            configured = inductor_config.get_hash(), functorch_config.get_hash()
        way = choice.share if isinstance(choice, Own) else plan.steps
        key = (found.digest, configured, str(sorted(patches.items())), way)
        if (self.dry, key) not in _peaks:
            self.tell(f"following the program of {what} of {format_bytes(plan.peak_bytes)}")
            peak = self._followed(choice)
            if peak is None:
                raise _NotFollowedError
            _peaks[self.dry, key] = peak
        peak = _peaks[self.dry, key]
        _log.info(
            "%s: %s: peak %s when compiled, %s predicted, %s more time",
            plan.graph_name,
            what,
            format_bytes(peak),
            format_bytes(plan.peak_bytes),
            format_percent(plan.overhead),
        )
        return Candidate(choice, peak)

    def _followed(self, choice: Choice) -> int | None:
        """The peak of a choice's program; None if it is not known."""
        try:
            planned = self.program(given(choice), dry=self.dry).planned
        except LowtideError:
            raise
        except Exception as error:  # whatever inductor may raise without kernels
            if not self.dry:
                raise
            _log.info("inductor needs its kernels to be followed: %r", error)
            self.dry = False
            planned = self.program(given(choice)).planned
        return None if planned is None else planned.peak_bytes
