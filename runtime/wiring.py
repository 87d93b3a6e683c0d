"""A plan with the code that runs it: what is constant over calls and copies of a module."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..frontends.torch.outside.behaviour import behaviours_of
from ..frontends.torch.switches import Running
from ..solver.warn import warn_user
from .distributed.fsdp import Units
from .generate.codegen import generate
from .generate.sums import Sums, sums_of
from .guards.algorithms import warn_of_benchmarks
from .guards.ambient import device_kinds
from .guards.guards import Guards
from .guards.shared_casts import cast_parameters
from .guards.whereabouts import Whereabouts
from .step.arena import plan_arena
from .step.hold import held_back
from .step.passed_on import copied_inputs
from .step.peaks import (
    begun_peak,
    begun_words,
    existing_peak,
    existing_words,
    gaps_peak,
    gaps_words,
)  # fmt: skip
from .step.run import Run
from .step.tangents import Tangent, taken_as_it_is

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ..frontends.torch.captured import Captured
    from ..frontends.torch.outside.behaviour import Behaviour
    from ..frontends.torch.program import Program
    from ..solver.plan import Plan
    from ..solver.schedule import Schedule
    from .generate.code import StepCode
    from .step.arena import Arena


def reach(program: Program, values: Sequence[int]) -> frozenset[int]:
    """Inputs that `values` are computed from, buffers and constants not counted."""
    maker = {value: op.reads for op in program.ops for value in op.writes}
    pending, seen = list(values), set(values)
    while pending:
        value = pending.pop()
        view = program.views.get(value)
        for source in maker.get(value, ()) if view is None else view.refs():
            if source not in seen:
                seen.add(source)
                pending.append(source)
    return frozenset(
        i
        for i, spec in enumerate(program.inputs)
        if spec.kind in ("param", "input") and spec.value in seen
    )


def _runs_again(program: Program, schedule: Schedule) -> bool:
    """Whether backward runs operators again that forward ran."""
    seen: set[int] = set()
    for op in schedule.computes():
        if op in seen and program.graph.ops[op].phase == "forward":
            return True
        seen.add(op)
    return False


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the items at `places` out of a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple(items[place] for place in places)


class Wiring:
    """How the generated code of one step is connected: constant over calls and copies."""

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        *,
        stages: int | None = None,
        behaviours: Sequence[Behaviour] = (),
        units: Units | None = None,
        exact: bool = False,
        arena: Arena | None = None,
    ) -> None:
        self.program = program
        self.units = units
        self.arena = arena
        sharding = None if units is None else units.sharding
        self.code: StepCode = generate(
            program, schedule, stages=stages, arena=arena, sharding=sharding
        )
        late = None if sharding is None else sharding.of_input
        self.guards = Guards(program, behaviours, late, exact=exact)
        kept = [i for i, spec in enumerate(program.inputs) if spec.kind != "tangent"]
        place_of_input = {index: place for place, index in enumerate(kept)}
        self.leaves = [
            [place_of_input[program.gradients[g].input] for g in stage]
            for stage in self.code.stages
            if stage
        ]
        self.sums = Sums(program, self.code) if sums_of(program) else None
        summed = () if self.sums is None else self.sums.inputs
        self.summed_of = _picker([place_of_input[index] for index in summed])
        self.copied = [
            (place_of_input[program.gradients[g].input], g) for g in copied_inputs(program)
        ]
        self.input_names = [
            program.inputs[i].fqn or f"input {program.inputs[i].position}" for i in kept
        ]
        specs = program.outputs
        by_value = [
            [spec for spec in specs if spec.value == value] for value in self.code.output_values
        ]
        self.differentiable = [
            place for place, same in enumerate(by_value) if any(s.differentiable for s in same)
        ]
        self.refused = [
            place
            for place, same in enumerate(by_value)
            if place not in self.differentiable and any(s.refuse_backward for s in same)
        ]
        self.refused_reach = [
            place
            for place, i in enumerate(kept)
            if i in reach(program, [self.code.output_values[out] for out in self.refused])
        ]
        self.cast = cast_parameters(program)
        self.running = Running(device_kinds(program)) if _runs_again(program, schedule) else None
        self.tangents = self._tangents()
        # One node does for all: it runs the step, and hands over what comes out,
        self.whole = not (self.code.staged or self.cast or self.refused) and (
            bool(self.leaves) and len(self.differentiable) == len(self.code.output_values) > 0
        )
        # ... which is one tensor.
        self.is_plain = self.code.leaves == (("value", 0),) and program.out_spec.is_leaf()
        devices = [program.value_meta[value].device for value in self.code.output_values]
        self.device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
        self.leaves_of = _picker(self.leaves[0] if self.whole else ())
        # What the module holds comes first, and what each call brings with it last.
        given = {place for place, i in enumerate(kept) if program.inputs[i].kind == "input"}
        watched = sorted(self.code.watched_inputs, key=given.__contains__)
        self._watched_of = _picker(watched)
        self._watched_names = [self.input_names[place] for place in watched]
        self._watched_names += [f"output {place}" for place in self.code.watched_outputs]
        self._whereabouts = Whereabouts(sum(place not in given for place in watched))
        self.plain_leaves = [spec.literal for spec in specs]
        graph = program.graph if arena is None else arena.graph
        self.existing_peak_bytes = existing_peak(program, self.code, graph, schedule)
        self.begun_peak_bytes = begun_peak(self.code, graph, schedule)
        self.gaps_peak_bytes = gaps_peak(program, graph, schedule)
        self.gaps_alarm = ""
        self.alarm = ""

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        saved: list[Any],
        leaves: Sequence[torch.Tensor],
    ) -> Run:
        """What backward needs of a forward that has just run; completes `saved`.

        `leaves` are what the first gradients are for.
        """
        code = self.code
        watched = self._watched_of(inputs)
        if code.watched_outputs:
            # It must not be the tensor that gets the history which leads back to it: a cycle.
            kept = {place: outputs[place].detach() for place in code.watched_outputs}
            for place, output in code.saved_outputs:
                saved[place] = kept[output]
            watched = (*watched, *kept.values())
        run = Run(code, self.tangents, saved, watched, self._watched_names)
        if self.units is None:  # those of a sharded unit are gathered anew
            run.whereabouts, run.lay = self._whereabouts, self._whereabouts.now(watched)
        if self.running is not None:
            run.settings = self.running, self.running.now()
        if self.alarm:
            run.alarm = self.warn
            run.owners = [tensor for tensor in leaves if tensor.is_leaf]
        if self.sums is not None:
            run.sums = self.sums
        if self.copied:
            history = (g for place, g in self.copied if inputs[place].grad_fn is not None)
            run.passed_on = frozenset(history)
            if run.passed_on and self.gaps_alarm:
                text, self.gaps_alarm = self.gaps_alarm, ""
                warn_user(text)
        return run

    def limit(self, budget_bytes: int) -> None:
        """Arm the alarms: once, if a step on existing gradients needs more than the budget.

        Or one whose sums begin with gradients from elsewhere.
        """
        if self.sums is not None and self.begun_peak_bytes > budget_bytes:
            self.sums.alarm = begun_words(self.begun_peak_bytes, budget_bytes)
        if self.gaps_peak_bytes > budget_bytes:
            self.gaps_alarm = gaps_words(self.gaps_peak_bytes, budget_bytes)
        if self.existing_peak_bytes > budget_bytes:
            self.alarm = existing_words(self.existing_peak_bytes, budget_bytes)

    def warn(self) -> None:
        """Say once that the budget is exceeded."""
        text, self.alarm = self.alarm, ""
        if text:
            warn_user(text)

    def _tangents(self) -> list[Tangent]:
        """Which gradient of which output becomes which tangent.

        A value that stands at several output leaves is one tensor, whose gradient autograd has
        summed: it goes to the first tangent. Outputs that alias an input pass their gradient on
        by themselves.
        """
        found: list[Tangent] = []
        used: set[int] = set()
        for spec in self.program.inputs:
            if spec.kind != "tangent":
                continue
            kind, place = self.code.leaves[spec.position]
            output = -1
            if kind == "value" and place in self.differentiable and place not in used:
                used.add(place)
                output = self.differentiable.index(place)
            meta = self.program.value_meta[spec.value]
            allowed = partial(taken_as_it_is, self.program, spec.value)
            found.append(Tangent(output, meta.shape, meta.stride, meta.dtype, meta.device, allowed))
        return found


class Planned(NamedTuple):
    """A captured step, a plan for it, and the code that runs it."""

    captured: Captured
    plan: Plan
    wiring: Wiring

    @classmethod
    def of(
        cls, captured: Captured, plan: Plan, *, exact: bool = False, arena: bool = False
    ) -> Planned:
        """Generate the code of a plan that was checked; `exact` as in `Guards`."""
        then = captured.behaviours
        if then is None:
            then = behaviours_of(captured.program, captured.model, captured.loss_fn)
        plan = held_back(captured.program, plan)
        warn_of_benchmarks(captured, plan.schedule)
        place = plan_arena(captured.program, plan.schedule, captured.device) if arena else None
        wiring = Wiring(captured.program, plan.schedule, behaviours=then, exact=exact, arena=place)
        wiring.limit(plan.budget_bytes)
        return cls(captured, plan, wiring)

    @property
    def peak_bytes(self) -> int:
        """Predicted peak, resident bytes included: the plan's, or that with the arena."""
        arena = self.wiring.arena
        return self.plan.peak_bytes if arena is None else arena.peak_bytes

    def rewired(self, model: nn.Module) -> Planned:
        """The same plan as code for the children that are sharded now; itself if it is that."""
        wiring = self.wiring
        units = Units(wiring.program, model)
        if units.key == (() if wiring.units is None else wiring.units.key):
            return self
        units.agree(self.plan.steps)
        new = Wiring(
            wiring.program,
            self.plan.schedule,
            behaviours=wiring.guards.behaviours,
            units=units,
            exact=wiring.guards.exact,
            arena=wiring.arena,
        )
        new.limit(self.plan.budget_bytes)
        return self._replace(wiring=new)
