"""Values that a step computes from constants and from the batch's integers, for its branches.

`torch.arange`, what is made of it and a question such as `(positions.diff() == 1).all()` have the
same answer in every step, so the trace can follow the branch that the plain run takes. Model
libraries ask such questions about masks and positions that nobody passed. Questions about masks
and tokens of the batch are answered for the example, and noted: see `questions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import export
from .questions import QUESTIONS, Leaf, Question, Recipe, holds_recipe, reply

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 1 << 20  # elements
_FACTORIES = {"arange", "eye", "full", "ones", "tril_indices", "triu_indices", "zeros"}
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
    "to", "transpose", "tril", "triu", "unsqueeze", "view", "where",
}  # fmt: skip


class Known:
    """Real values beside the tensors of one run of the step.

    A tensor that was changed in place is no longer known, and neither are its views: they share a
    version.

    Attributes
    ----------
    questions
        Those about the batch that were answered.
    """

    def __init__(self) -> None:
        self._values: dict[int, _Value] = {}
        self.questions: list[Question] = []

    def add_input(self, stand_in: torch.Tensor, real: torch.Tensor, position: int) -> None:
        """Know an argument, if it is of integers or booleans and not too large to ask about."""
        exact = not (real.is_floating_point() or real.is_complex())
        data = export.is_plain(real) and real.device.type != "meta"
        if exact and data and real.numel() <= _LARGEST:
            with export.real_values():
                real = real.detach().cpu()
            version = stand_in._version
            self._values[id(stand_in)] = _Value(stand_in, version, real, Leaf(position))

    def answer(self, name: str, args: tuple[Any, ...], origin: Any) -> tuple[Any] | None:
        """What a question about known tensors gives, as a tuple of one; None if it is open.

        `origin()` is the line that asks.
        """
        if name not in QUESTIONS or not self._values:
            return None
        reals = self._reals(args)
        if reals is None:
            return None
        with export.real_values():
            found = reply(name, reals)
        recipes = self._recipes(args)
        if holds_recipe(recipes):
            self.questions.append(Question(name, recipes, found, origin()))
        return (found,)

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
        elif name == "to":
            args = tuple("cpu" if isinstance(a, (str, torch.device)) else a for a in args)
            kwargs = {key: "cpu" if key == "device" else value for key, value in kwargs.items()}
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
            recipes = self._recipes((args, kwargs))
            recipe = Recipe(func, *recipes) if holds_recipe(recipes) else value
            self._values[id(result)] = _Value(result, result._version, value, recipe)

    def _reals(self, argument: Any) -> Any:
        """The argument with real values in place of tensors; None unless all are known."""
        if isinstance(argument, torch.Tensor):
            known = self._values.get(id(argument))
            if known is None or known.version != argument._version:
                return None
            return known.real
        if type(argument) in (tuple, list):
            reals = [(item, self._reals(item)) for item in argument]
            if any(real is None and item is not None for item, real in reals):
                return None
            return type(argument)(real for _, real in reals)
        if type(argument) is dict:
            reals = self._reals(list(argument.values()))
            return None if reals is None else dict(zip(argument, reals, strict=True))
        return argument

    def _recipes(self, argument: Any) -> Any:
        """The argument with recipes or values in place of tensors, all of which are known."""
        if isinstance(argument, torch.Tensor):
            return self._values[id(argument)].recipe
        if type(argument) in (tuple, list):
            return type(argument)(map(self._recipes, argument))
        if type(argument) is dict:
            return {key: self._recipes(item) for key, item in argument.items()}
        return argument


class _Value(NamedTuple):
    """What is known of a tensor: its version then, its real value, and how it came about."""

    tensor: torch.Tensor
    version: int
    real: torch.Tensor
    recipe: Any
