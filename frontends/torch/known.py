"""Values that a step computes from nothing but constants, for the branches that ask for them.

`torch.arange`, what is made of it and a question such as `(positions.diff() == 1).all()` have the
same answer in every step, so the trace can follow the branch that the plain run takes. Model
libraries ask such questions about masks and positions that nobody passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import export

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 1 << 20  # elements
_FACTORIES = {"arange", "eye", "full", "ones", "tril_indices", "triu_indices", "zeros"}
_QUESTIONS = {"__bool__", "__float__", "__index__", "__int__", "equal", "is_nonzero", "item"}
_ROUNDED = {"cumsum", "prod", "sum"}  # whose floats depend on the device
# No in-place writes, nothing random: same values from same values.
_OPERATORS = {
    "__add__", "__and__", "__eq__", "__ge__", "__getitem__", "__gt__", "__invert__", "__le__",
    "__lt__", "__mul__", "__ne__", "__or__", "__radd__", "__rmul__", "__rsub__", "__sub__",
    "__xor__", "abs", "add", "all", "amax", "amin", "any", "bitwise_and", "bitwise_or", "bool",
    "cat", "clamp", "contiguous", "count_nonzero", "cumsum", "detach", "diff", "eq", "expand",
    "expand_as", "flatten", "flip", "float", "ge", "gt", "int", "isfinite", "isinf", "le",
    "logical_and", "logical_not", "logical_or", "long", "lt", "masked_fill", "max", "min", "mul",
    "ne", "neg", "permute", "prod", "repeat", "reshape", "roll", "squeeze", "stack", "sub", "sum",
    "transpose", "tril", "triu", "unsqueeze", "view", "where",
}  # fmt: skip


class Known:
    """Real values beside the tensors of one run of the step.

    A tensor that was changed in place is no longer known, and neither are its views: they share a
    version.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}

    def answer(self, name: str, args: tuple[Any, ...]) -> tuple[Any] | None:
        """What a question about known tensors gives, as a tuple of one; None if it is open."""
        if name not in _QUESTIONS or not self._values:
            return None
        reals = self._reals(args)
        if reals is None:
            return None
        with export.real_values():
            if name == "equal":
                return (torch.equal(*reals),)
            number = reals[0].item()
        cast = {"__bool__": bool, "is_nonzero": bool, "__float__": float, "__int__": int}.get(name)
        return (number if cast is None else cast(number),)

    def note(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Remember the value of a call's result, if it follows from known ones."""
        made = name in _FACTORIES
        if not (made or (name in _OPERATORS and self._values)) or "out" in kwargs:
            return
        if not isinstance(result, torch.Tensor) or result.numel() > _LARGEST:
            return
        if result.is_inference() or export.transforming():
            return
        if made:
            kwargs = {key: value for key, value in kwargs.items() if key != "requires_grad"}
            kwargs["device"] = "cpu"
        real_args, real_kwargs = self._reals(args), self._reals(kwargs)
        if real_args is None or real_kwargs is None:
            return
        try:
            with export.real_values():
                value = func(*real_args, **real_kwargs)
        except RuntimeError:
            return  # not on a CPU: a pinned tensor, a rare data type
        if name in _ROUNDED and value.is_floating_point():
            return
        if value.shape == result.shape and value.dtype == result.dtype:
            self._values[id(result)] = (result, result._version, value)

    def _reals(self, argument: Any) -> Any:
        """The argument with real values in place of tensors; None unless all are known."""
        if isinstance(argument, torch.Tensor):
            known = self._values.get(id(argument))
            return None if known is None or known[1] != argument._version else known[2]
        if type(argument) in (tuple, list):
            reals = [(item, self._reals(item)) for item in argument]
            if any(real is None and item is not None for item, real in reals):
                return None
            return type(argument)(real for _, real in reals)
        if type(argument) is dict:
            reals = self._reals(list(argument.values()))
            return None if reals is None else dict(zip(argument, reals, strict=True))
        return argument
