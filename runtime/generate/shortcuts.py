"""Two operators in one call, where PyTorch has a function that runs just these.

Below autograd `linear(x, w, b)` is `addmm(b, x, t(w))`, and a sum that drops the dimension it sums
over is one that keeps it and a view: the same kernels on the same numbers, with one call from
Python less.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ...frontends.torch.bindings import called_by, function_of
from ...frontends.torch.program import ValueRef

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from ...frontends.torch.program import Call, Program
    from .literals import Namespace

_aten: Any = torch.ops.aten
_linear: Any = torch._C._nn.linear


class Shortcuts:
    """Finds the function to call, and calls that take a view along, or make one.

    Parameters
    ----------
    program
        The step.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._views_of: dict[int, list[int]] = {}
        for value, view in program.views.items():
            for source in view.refs():
                self._views_of.setdefault(source, []).append(value)
        self._read = {value for op in program.ops for value in op.reads}
        self._read |= {spec.value for spec in program.outputs if spec.value is not None}
        self._read |= {spec.value for spec in program.gradients if spec.value is not None}

    def function(self, namespace: Namespace, call: Call) -> str:
        """Name of the function that runs a call."""
        args, kwargs = pytree.tree_map(
            self._stand_in,
            (call.args, call.kwargs),
            is_leaf=lambda item: isinstance(item, ValueRef),
        )
        target = call.target
        name = getattr(target, "__name__", type(target).__name__).removesuffix(".default")
        return namespace.bind(function_of(target, args, kwargs), name)

    def _stand_in(self, argument: Any) -> Any:
        """What looks like a value, for an argument that names one."""
        if not isinstance(argument, ValueRef):
            return argument
        meta = self._program.value_meta[argument.index]
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")

    def shorter(self, call: Call, same: Mapping[int, int], bound: Container[int]) -> Call:
        """One call for `call` and a view that goes with it, if there is such a view.

        Parameters
        ----------
        same
            Value -> equal value, by whose name it goes.
        bound
            Values that have a name: such a view is there already.
        """
        found = self.linear(call)
        if found is not None:
            factor = call.args[-1].index
            factor = same.get(factor, factor)
            # The transpose of a transpose is what it was: that takes no call at all.
            there = factor in bound or factor not in self._program.views
            return call if there else found
        if any(made in same.values() for made in call.outputs):
            return call  # another view goes by that name: then it is read
        return self.dropping_sum(call) or call

    def linear(self, call: Call) -> Call | None:
        """`call` as one of `linear`, if it multiplies by the transposed of something."""
        if call.target not in (_aten.addmm.default, _aten.mm.default) or call.kwargs:
            return None
        *bias, x, factor = call.args
        view = self._program.views.get(factor.index)
        if view is None or view.target is not _aten.t.default:
            return None
        args = (x, view.args[0], *bias)
        stand_ins = [self._stand_in(argument) for argument in args]
        calls = called_by(_linear, stand_ins, {})
        if [found.target for found in calls] != [_aten.t.default, call.target]:
            return None
        transposed, product = calls
        wanted = (*stand_ins[2:], stand_ins[0], transposed.result)
        if transposed.args[0] is not stand_ins[1] or product.kwargs:
            return None
        if len(product.args) != len(wanted) or not all(map(is_, product.args, wanted)):
            return None
        return replace(call, target=_linear, args=args)

    def dropping_sum(self, call: Call) -> Call | None:
        """`call` as a sum that drops its dimensions, if nothing else is done with its result."""
        if call.target is not _aten.sum.dim_IntList or call.kwargs or len(call.args) != 3:
            return None
        x, dims, keeps = call.args
        (made,) = call.outputs
        views = self._views_of.get(made, []) if made is not None else []
        if keeps is not True or not dims or made in self._read or len(views) != 1:
            return None
        view, shape = self._program.views[views[0]], self._program.value_meta[x.index].shape
        dropped = {dim % len(shape) for dim in dims}
        left = [size for place, size in enumerate(shape) if place not in dropped]
        if view.target is not _aten.view.default or [*view.args[1]] != left:
            return None
        return replace(call, args=(x, dims, False), outputs=(views[0],))
