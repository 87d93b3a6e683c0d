"""The module that replays: the user's module on the outside, a plan on the inside.

It shares the tables of parameters, buffers and children with the wrapped module, so names, state
dicts, optimizers and wrappers (DDP, FSDP) see what they would see in the original. What it does not
define itself it looks up there.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..frontends.torch.batches import split_batch
from ..frontends.torch.processes import is_sharded
from ..solver.errors import InputError, ReplayError
from .disguise import class_for
from .distributed.fsdp import refuse_sharded, run_forward
from .face import Face
from .guards.differences import explain
from .guards.shared_casts import CastContext, current
from .guards.transforms import in_transform, refuse_duals, transform_error
from .pickling import register
from .step.autograd import run_whole
from .step.copies import copy_module
from .step.quiet import quiet
from .step.results import give_history, returned
from .wiring import Planned, Wiring

if TYPE_CHECKING:
    from ..frontends.torch.captured import Captured
    from ..solver.plan import Plan
    from .plans.shapes import Shapes
    from .step.arena import Arena

_SHARED_TABLES = (
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set",
    "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


# The autocast context of the last step of each module.
_casts: WeakKeyDictionary[ReplayModule, CastContext] = WeakKeyDictionary()


class ReplayModule(Face):
    """Runs a captured training step by a plan; made by `replay` and `fit`.

    Calls with gradients off, or with the whole module in eval mode (if captured in training), run
    the original module. All others must look like the captured call, or raise `ReplayError`; a
    module made by `fit` has a plan for each kind of call instead, see there.

    Checked in each call: arguments (structure, shapes, dtypes, devices, strides, other values),
    parameters and buffers (found by name: present, same look, tied as they were), modules (mode,
    class, code, hooks, number of children, plain attributes), ambient autocast, and the global
    settings of PyTorch that decide of which operators a step is made, all against the time of the
    capture; and numbers, words and functions that the code of the step looks up by name in
    closures, globals, containers, objects, classes and the environment.

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
    def arena(self) -> Arena | None:
        """The buffer that it runs in, and what it allocates outside; None without one."""
        wiring: Wiring = self._wiring
        return wiring.arena

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
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
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
        refill = wiring.program.refill
        if refill is not None:
            refill.apply(args, kwargs)
        if wiring.whole:
            made = run_whole(wiring, inputs)
            return made[0] if wiring.is_plain else returned(wiring, inputs, list(made))
        code = wiring.code
        casts = None
        if wiring.cast:
            casts = _casts[self] = current(_casts.get(self), wiring.program.autocast[0][0])
            casts.forward(inputs, wiring.cast)
        if wiring.units is None:
            with quiet():
                outputs, saved = code.forward(inputs)
        else:
            outputs, saved = run_forward(code, inputs, wiring.units, self._wrapped)
        values = list(outputs)
        if wiring.leaves and wiring.differentiable:
            give_history(wiring, inputs, values, saved, casts)
        return returned(wiring, inputs, values)

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
            If the module has one plan for good (it is from `replay`), was changed, or is sharded.
        LowtideError
            If the call cannot be captured, or its plan cannot meet the budget.
        """
        shapes: Shapes | None = self._shapes
        found = self.planned_for(batch)
        if found is not None:
            return found.plan
        if is_sharded(self):
            refuse_sharded(self._wrapped, "this is a new kind of call")
            raise ReplayError(
                "the module is sharded as one unit, and its parameters are gathered in a call "
                "only: call it with such a batch, or prepare before fully_shard"
            )
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
        copy_module(self._wrapped, memo)  # the tables below are its
        for name, value in self.__dict__.items():
            if name == "_sharded":
                continue
            new.__dict__[name] = fixed[name] if name in fixed else copy.deepcopy(value, memo)
        loss_fn = self.captured.loss_fn
        if isinstance(loss_fn, nn.Module):
            loss_fn = copy_module(loss_fn, memo)
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
