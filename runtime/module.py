"""The module that replays: the user's module on the outside, a plan on the inside.

It shares the tables of parameters, buffers and children with the wrapped module, so names, state
dicts, optimizers and wrappers (DDP, FSDP) see what they would see in the original. What it does not
define itself it looks up there.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..frontends.torch.capture import split_batch
from ..frontends.torch.deliveries import is_accumulating
from ..solver.errors import InputError, ReplayError
from ..solver.simulate import peak_on_existing, simulate
from ..solver.units import format_bytes
from .algorithms import warn_of_benchmarks
from .arena import plan_arena
from .autograd import Run, Tangent, attach, quiet, refuse
from .behaviour import behaviours_of
from .codegen import generate
from .differences import explain
from .disguise import class_for
from .face import Face
from .fsdp import Units, run_forward
from .guards import Guards
from .hold import held_back
from .pickling import register
from .transforms import in_transform, refuse_duals, transform_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..frontends.torch.captured import Captured
    from ..frontends.torch.program import Program
    from ..solver.plan import Plan
    from ..solver.schedule import Schedule
    from .arena import Arena
    from .behaviour import Behaviour
    from .code import StepCode
    from .shapes import Shapes

_SHARED_TABLES = (
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set",
    "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


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
        self.tangents = self._tangents()
        self.plain_leaves = [spec.literal for spec in specs]
        self.existing_peak_bytes = self._existing_peak(schedule)
        self.alarm = ""

    def _existing_peak(self, schedule: Schedule) -> int:
        """Predicted peak of a step that adds to gradients of an earlier backward."""
        program = self.program
        graph = program.graph if self.arena is None else self.arena.graph
        if is_accumulating(graph):
            return simulate(graph, schedule).peak_bytes
        leaving = []
        for end, stage in zip(self.code.stage_ends, self.code.stages, strict=True):
            for spec in (program.gradients[g] for g in stage):
                if spec.value is not None and program.inputs[spec.input].kind == "param":
                    leaving.append((end, program.value_tensor[spec.value]))
        return peak_on_existing(graph, schedule, leaving)

    def limit(self, budget_bytes: int) -> None:
        """Arm the alarm: once, if a step on existing gradients needs more than the budget."""
        need = self.existing_peak_bytes
        if need > budget_bytes:
            self.alarm = (
                f"this backward adds to gradients that are there already: the step then needs "
                f"{format_bytes(need)} ({need} B), more than its budget of "
                f"{format_bytes(budget_bytes)} ({budget_bytes} B), for the plan is for steps that "
                "begin without gradients. Capture or fit with accumulate=True, or call zero_grad() "
                "before each step"
            )

    def warn(self) -> None:
        """Say once that the budget is exceeded."""
        text, self.alarm = self.alarm, ""
        if text:
            warnings.warn(text, UserWarning, stacklevel=2)

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
            found.append(Tangent(output, meta.shape, meta.stride, meta.dtype, meta.device))
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
        return self._replace(wiring=new)


class ReplayModule(Face):
    """Runs a captured training step by a plan; made by `replay` and `fit`.

    Calls with gradients off, or with the whole module in eval mode (if captured in training), run
    the original module. All others must look like the captured call, or raise `ReplayError`; a
    module made by `fit` has a plan for each kind of call instead, see there.

    Checked in each call: arguments (structure, shapes, dtypes, devices, strides, other values),
    parameters and buffers (found by name: present, same look, tied as they were), modules (mode,
    class, code, hooks, number of children, plain attributes) and ambient autocast, all against the
    time of the capture. Not checked: what the code reads from other Python objects.

    Buffers are updated by the plan, mostly at the end of forward. If an operator raises before
    that, some hold older contents than the plain run leaves; none is half written.

    Attributes
    ----------
    captured, plan
        What it was made from: the first plan, if it has several.
    """

    captured: Captured
    plan: Plan

    def __init__(
        self, captured: Captured, plan: Plan, wiring: Wiring, shapes: Shapes | None = None
    ) -> None:
        super().__init__()
        state = self.__dict__
        state["_wrapped"] = captured.model
        state["captured"], state["plan"], state["_wiring"] = captured, plan, wiring
        state["_shapes"] = shapes
        for table in _SHARED_TABLES:
            state[table] = captured.model.__dict__[table]

    @property
    def code(self) -> str:
        """Source of the generated forward and backward."""
        wiring: Wiring = self._wiring
        return wiring.code.source

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of the first plan, resident bytes included."""
        return self._first.peak_bytes

    @property
    def existing_peak_bytes(self) -> int:
        """Predicted peak of a step on gradients of an earlier backward, which are counted.

        That of a plan for steps that begin without gradients is larger than its `peak_bytes`; a
        backward that makes it exceed the budget warns once. See `capture(..., accumulate=True)`.
        """
        wiring: Wiring = self._wiring
        return wiring.existing_peak_bytes

    # The step -----------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """One forward by the plan; see `ReplayModule`.

        Raises
        ------
        ReplayError
            If arguments, parameters or modules are not those of the captured call, or it is inside
            a `torch.func` transform or forward-mode AD.
        """
        if not torch.is_grad_enabled():
            return self.captured.call(args, kwargs)
        wiring: Wiring = self.__dict__.get("_sharded") or self._wiring
        loss_fn = self.captured.loss_fn
        inputs = None
        if not in_transform():
            inputs = wiring.guards.fast(self._wrapped, loss_fn, args, kwargs)
        if inputs is None:
            found = self._second_look(args, kwargs)
            if found is None:
                return self.captured.call(args, kwargs)
            planned, inputs = found
            wiring = planned.wiring
        refuse_duals(inputs, wiring.input_names)
        code = wiring.code
        if wiring.units is None:
            with quiet():
                outputs, saved = code.forward(inputs)
        else:
            outputs, saved = run_forward(code, inputs, wiring.units, self._wrapped)
        values = list(outputs)
        if wiring.leaves and wiring.differentiable:
            self._attach(wiring, inputs, values, saved)
        leaves = list(wiring.plain_leaves)
        aliases = code.alias_outputs(inputs) if code.alias_outputs is not None else ()
        for leaf, (kind, place) in enumerate(code.leaves):
            if kind == "value":
                leaves[leaf] = values[place]
            elif kind == "alias":
                leaves[leaf] = aliases[place]
        spec = wiring.program.out_spec
        return leaves[0] if spec.is_leaf() else pytree.tree_unflatten(leaves, spec)

    def _second_look(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Planned, list[torch.Tensor]] | None:
        """Plan and inputs of a call that is not written as the first one; None: run it plain.

        Here it is also noticed that children were sharded since the last call: the same plan is
        then written as code that gathers and frees their parameters.
        """
        model, loss_fn, first = self._wrapped, self.captured.loss_fn, self._first
        shapes: Shapes | None = None if in_transform() else self._shapes
        if shapes is not None:
            found = shapes.find(model, loss_fn, args, kwargs)
            if found is not None:
                return found
        if first.wiring.guards.runs_plain(model, loss_fn):
            return None
        if in_transform():
            raise transform_error()
        rewired = first.rewired(model)
        if rewired is not first:
            first = rewired
            self.__dict__["_sharded"] = first.wiring
        guards = first.wiring.guards
        again = guards.normalise(model, args, kwargs)
        if again is not None:
            args, kwargs = again
        inputs: list[torch.Tensor] | None = guards.fast(model, loss_fn, args, kwargs)
        if inputs is not None:
            return first, inputs
        if shapes is None:
            raise explain(guards, model, loss_fn, args, kwargs)
        return shapes.meet(first, args, kwargs)

    @property
    def _first(self) -> Planned:
        wiring: Wiring = self.__dict__.get("_sharded") or self._wiring
        return Planned(self.captured, self.plan, wiring)

    def prepare(self, batch: Any) -> Plan:
        """Plan for calls like that of `batch`, in the present modes, unless there is a plan.

        Parameters
        ----------
        batch
            A tuple of positional arguments, a dict of keyword arguments, or a single tensor.

        Returns
        -------
        Plan
            The plan that such a call will run by.

        Raises
        ------
        ReplayError
            If the module has one plan for good (it is from `replay`), or was changed.
        LowtideError
            If the call cannot be captured, or its plan cannot meet the budget.
        """
        shapes: Shapes | None = self._shapes
        found = self.planned_for(batch)
        if found is not None:
            return found.plan
        if shapes is None:
            raise ReplayError("a module made by replay has one plan: use fit, which plans others")
        return shapes.add(self._first, *self._call_of(batch), ahead=True).plan

    def planned_for(self, batch: Any) -> Planned | None:
        """The captured step and the plan that calls like that of `batch` run by; None: no plan."""
        args, kwargs = self._call_of(batch)
        first, shapes = self._first, self._shapes
        with torch.enable_grad():
            model, loss_fn = self._wrapped, self.captured.loss_fn
            if first.wiring.guards.fast(model, loss_fn, args, kwargs) is not None:
                return first
            found = shapes and shapes.find_any_form(model, loss_fn, args, kwargs)
            return found[0] if found else None

    def _call_of(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keywords of a batch, which must be given as the first one was."""
        style, args, kwargs = split_batch(batch)
        first = self.captured
        if first.loss_takes_batch and style != first.batch_style:
            raise InputError(
                f"the batch is a {style} and the first one was a {first.batch_style}: give it in "
                "the same form, which is what the loss gets"
            )
        again = self._wiring.guards.normalise(self._wrapped, args, kwargs)
        return again if again is not None else (args, kwargs)

    def _attach(
        self,
        wiring: Wiring,
        inputs: list[torch.Tensor],
        values: list[torch.Tensor],
        saved: list[torch.Tensor],
    ) -> None:
        """Give outputs their autograd history, in place in `values`."""
        code = wiring.code
        run = Run(code, wiring.tangents, saved, wiring.units)
        if wiring.alarm:
            run.alarm = wiring.warn
        for place in code.watched_inputs:
            run.watch(inputs[place], wiring.input_names[place])
        # What backward keeps of an output must not be the tensor that gets this history: a cycle.
        kept = {place: values[place].detach() for place in code.watched_outputs}
        for place, tensor in kept.items():
            run.watch(tensor, f"output {place}")
        for place, output in code.saved_outputs:
            saved[place] = kept[output]
        leaves = [[inputs[i] for i in stage] for stage in wiring.leaves]
        made = attach(run, [values[i] for i in wiring.differentiable], leaves)
        for place, tensor in zip(wiring.differentiable, made, strict=True):
            values[place] = tensor
        if wiring.refused and made[0].requires_grad:
            anchor = next(t for stage in leaves for t in stage if t.requires_grad)
            blocked = refuse([values[i] for i in wiring.refused], anchor)
            for place, tensor in zip(wiring.refused, blocked, strict=True):
                values[place] = tensor

    # The module -----------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """That it is replayed, and the plan's peak."""
        return f"replayed by lowtide, peak_bytes={self.peak_bytes}"

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayModule:
        """A copy with its own module; the plan and the generated code are shared."""
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        shapes: Shapes | None = self._shapes
        fixed = {"plan": self.plan, "_wiring": self._wiring, "captured": None, "_shapes": None}
        for name, value in self.__dict__.items():
            if name == "_sharded":
                continue
            new.__dict__[name] = fixed[name] if name in fixed else copy.deepcopy(value, memo)
        loss_fn = self.captured.loss_fn
        if isinstance(loss_fn, nn.Module):
            loss_fn = copy.deepcopy(loss_fn, memo)
        new.__dict__["captured"] = replace(self.captured, model=new._wrapped, loss_fn=loss_fn)
        if shapes is not None:
            new.__dict__["_shapes"] = shapes.copy(new._wrapped, loss_fn)
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle captured steps and plans; the code is generated again."""
        known = {"_wrapped", "captured", "plan", "_wiring", "_sharded", "_shapes", *_SHARED_TABLES}
        extra = {name: value for name, value in self.__dict__.items() if name not in known}
        arena = self._wiring.arena is not None
        return build_module, (self.captured, self.plan, self._shapes, arena), extra

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


register()


def build_module(
    captured: Captured, plan: Plan, shapes: Shapes | None = None, arena: bool = False
) -> ReplayModule:
    """The module for a plan that was already checked; with `shapes`, for further ones, too."""
    planned = Planned.of(captured, plan, exact=shapes is not None, arena=arena)
    made: ReplayModule = class_for(ReplayModule, type(captured.model))(*planned, shapes)
    return made
