"""Checks, before each step, that the call is the one that was captured.

A captured program has shapes, data types, literals and training flags built in. One generated
function resolves parameters by name from the live module and compares everything; it returns None
at the first difference, and `explain` in `differences.py` then finds out which one, at leisure.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from ...frontends.torch.outside.modules import modules_of
from ..generate.source import build_functions
from .guard_code import write_guard
from .overlaps import Overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import torch
    from torch import nn

    from ...frontends.torch.outside.behaviour import Behaviour
    from ...frontends.torch.program import Program


class Guards:
    """Guards of one program.

    A tensor that required a gradient at capture may be frozen later: its gradient is computed and
    dropped. With `exact` that counts as a difference, too.

    Attributes
    ----------
    fast
        `fast(model, loss_fn, args, kwargs)`: the program's inputs (tangents not counted) in order,
        or None if something differs.
    source
        Its source.
    behaviours
        What the modules were when the step was captured.
    late
        Places of parameters that are None in the result: sharded ones, looked at when gathered.
        None: no module may be sharded.
    overlaps
        Arguments that must share no memory.
    """

    def __init__(
        self,
        program: Program,
        behaviours: Sequence[Behaviour] = (),
        late: Collection[int] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self.program = program
        self.behaviours = tuple(behaviours)
        self.late = None if late is None else frozenset(late)
        self.exact = exact
        self.inputs = [spec for spec in program.inputs if spec.kind != "tangent"]
        self.overlaps = Overlaps(program)
        self.source, namespace = write_guard(
            program, self.inputs, self.behaviours, self.late, exact, self.overlaps
        )
        self.fast: Callable[..., list[torch.Tensor] | None]
        (self.fast,) = build_functions(self.source, namespace, ("resolve",), "guards")
        self._signatures: dict[type, inspect.Signature | None] = {}

    def runs_plain(self, model: nn.Module, loss_fn: Any) -> bool:
        """True if the whole module is in eval mode and the program was captured in training."""
        if not any(self.program.training.values()):
            return False
        modules = modules_of(model, loss_fn)
        return not any(modules[path].training for path in self.program.training if path in modules)

    def normalise(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The same call in the captured form (positional or by keyword, defaults given or not).

        None if the arguments do not fit the signature of `forward`, or no form of them matches.
        """
        try:
            signature = inspect.signature(model.forward)
            bound = signature.bind(*args, **kwargs)
        except (TypeError, ValueError):
            return None
        bound.apply_defaults()
        given = _by_name(signature, bound)
        sample = pytree.tree_unflatten(
            [None] * self.program.in_spec.num_leaves, self.program.in_spec
        )
        try:
            wanted = _by_name(signature, signature.bind(*sample[0], **sample[1]))
        except TypeError:
            return None
        for name, value in given.items():
            if name not in wanted:
                parameter = signature.parameters.get(name)
                if parameter is None or value is not parameter.default:
                    return None
        if any(name not in given for name in wanted):
            return None
        positional = _positional(signature, given, len(sample[0]))
        if positional is None:
            return None
        return positional, {name: given[name] for name in sample[1]}


def _positional(
    signature: inspect.Signature, given: dict[str, Any], count: int
) -> tuple[Any, ...] | None:
    """The first `count` arguments in order, those of `*args` one by one; None if there are not."""
    found: list[Any] = []
    for name, parameter in signature.parameters.items():
        if len(found) >= count:
            break
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            found += given.get(name, ())
        elif name in given:
            found.append(given[name])
    return tuple(found) if len(found) == count else None


def _by_name(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments by name, `**kwargs` merged in; `*args` stay under their own name."""
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
            found[name] = value
    return found
