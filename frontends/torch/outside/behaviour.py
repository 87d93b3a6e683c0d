"""Notices modules that behave differently since capture: code, children, hooks, tensor attributes.

The generated guard tests emptiness and identity; only what is not empty or identical is looked at
closely by the functions here, which also name the difference.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ....solver.errors import a_type
from ..processes import same_class
from .modules import modules_of
from .search import places_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..program import Program
    from .places import Place

_HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
# Hooks that libraries install by themselves, at any call, and that only hand outputs on.
_HARMLESS = (
    "torch.nn.utils",
    "transformers.utils.output_capturing",
    "transformers.modeling_utils",
    "torch.distributed.fsdp._fully_shard",  # what they do, the replay does itself
)
_AGAIN = "which the plan does not have: capture and solve again, or call the original model"


@dataclass(frozen=True)
class Behaviour:
    """What one module was when the step was captured.

    Attributes
    ----------
    path
        Its path; "" for the model.
    kind
        Its class; None for a class that is made anew for each copy of a module.
    code
        `kind.forward`.
    own
        A `forward` of the instance itself, or None.
    children
        How many children it had.
    hooks
        Table to the keys of its hooks.
    tensors
        Attribute that is a constant of the program, to the value of the program.
    functions
        Attributes that are plain functions.
    outside
        For the model itself: what the step reads elsewhere.
    """

    path: str
    kind: type | None
    code: Any
    own: Any
    children: int
    hooks: dict[str, tuple[int, ...]]
    tensors: dict[str, int]
    functions: dict[str, Any]
    outside: tuple[Place, ...] = ()

    @classmethod
    def of(cls, path: str, module: nn.Module, constants: Mapping[int, int]) -> Behaviour:
        """Look at a module; `constants` leads from the id of a tensor to its value."""
        state = module.__dict__
        # Each copy of a GraphModule has a class of its own.
        kind = None if isinstance(module, torch.fx.GraphModule) else type(module)
        return cls(
            path,
            kind,
            getattr(kind, "forward", None),
            state["forward"] if has_own_forward(module) else None,
            len(module._modules),
            {table: hook_keys(state[table]) for table in _HOOKS if table in state},
            {
                name: constants[id(value)]
                for name, value in state.items()
                if isinstance(value, torch.Tensor) and id(value) in constants
            },
            {
                name: value
                for name, value in state.items()
                if isinstance(value, (types.FunctionType, types.BuiltinFunctionType))
                and name != "forward"
            },
        )

    def difference(self, module: nn.Module) -> str | None:
        """What is different now, in words."""
        where = f"module {self.path}" if self.path else "the module"
        if self.kind is not None and not same_class(module, self.kind):
            return (
                f"{where} is {a_type(type(module))} and was {a_type(self.kind)} when "
                "captured: capture and solve again, or put the captured one back"
            )
        if self.kind is not None and getattr(self.kind, "forward", None) is not self.code:
            return f"the class of {where} has another forward since capture, {_AGAIN}"
        if forward_differs(module, self.own):
            return f"{where} has another forward since capture, {_AGAIN}"
        if len(module._modules) != self.children:
            return (
                f"{where} has {len(module._modules)} children and had {self.children} when "
                "captured: capture and solve again"
            )
        for name, function in self.functions.items():
            if module.__dict__.get(name) is not function:
                of = f"{self.path}.{name}" if self.path else name
                return (
                    f"{of} is another function than it was when captured: capture and solve again"
                )
        for table, keys in self.hooks.items():
            found = hook_keys(module.__dict__.get(table, {}))
            if found != keys:
                change = "lost" if set(found) < set(keys) else "got"
                return f"{where} has {change} a {_HOOKS[table]} since capture: " + (
                    "capture and solve again, or call the original model"
                    if change == "lost"
                    else "it would not run. Remove it, capture and solve again, or call the "
                    "original model"
                )
        return None


def behaviours_of(program: Program, model: nn.Module, loss_fn: Any) -> tuple[Behaviour, ...]:
    """What all modules of a captured step are now."""
    constants = {id(s.tensor): s.value for s in program.inputs if s.kind == "constant"}
    modules = modules_of(model, loss_fn)
    paths = [path for path in program.training if path in modules]
    found = [Behaviour.of(path, modules[path], constants) for path in paths]
    if found:
        known = {name: modules[name] for name in paths}
        outside = places_of(known, loss_fn, constants, program.reads)
        found[0] = replace(found[0], outside=outside)
    return tuple(found)


def hook_keys(table: Mapping[int, Any]) -> tuple[int, ...]:
    """Keys of the hooks that may change something."""
    return tuple(
        key
        for key, hook in table.items()
        if not str(getattr(hook, "__module__", None) or type(hook).__module__).startswith(_HARMLESS)
    )


def has_own_forward(module: nn.Module) -> bool:
    """True if the instance has a `forward` other than its class's."""
    own = module.__dict__.get("forward")
    if isinstance(own, types.MethodType) and own.__self__ is module:
        return own.__func__ is not getattr(type(module), "forward", None)
    return own is not None


def forward_differs(module: nn.Module, own: Any) -> bool:
    """True if the instance's own `forward` is not the one it had.

    Functions keep their identity when a module is copied; of others only the type is compared.
    """
    found = module.__dict__["forward"] if has_own_forward(module) else None
    if isinstance(own, types.FunctionType) or found is None:
        return found is not own
    if isinstance(own, types.MethodType) and isinstance(found, types.MethodType):
        return found.__func__ is not own.__func__
    return type(found) is not type(own)
