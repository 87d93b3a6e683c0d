"""Questions of a step about the batch, such as `mask.all()`, and the answers that it followed.

The branch that a captured step took is right for every batch with the same answers, so these are
asked again before each replayed step. A question is kept as the calls that lead to it from the
arguments; only integers and booleans are followed, whose values are the same on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CASTS: dict[str, Callable[[Any], Any]] = {
    "__bool__": bool,
    "__float__": float,
    "__int__": int,
    "is_nonzero": bool,
}
QUESTIONS = frozenset({*_CASTS, "__contains__", "__index__", "equal", "item"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """An argument, by its place among the leaves of `(args, kwargs)`."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """A call whose arguments hold leaves, other recipes and plain values."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes
    ----------
    name
        Name of the function that was asked.
    args
        Its arguments, as in a recipe.
    answer
        What came out at capture.
    origin
        The user's line.
    """

    name: str
    args: Any
    answer: Any
    origin: str

    def ask(self, leaves: Sequence[Any], known: dict[int, Any]) -> Any:
        """The answer for other arguments; `known` keeps what several questions share."""
        return reply(self.name, _cook(self.args, leaves, known))


def reply(name: str, args: Sequence[Any]) -> Any:
    """What a question about real tensors gives."""
    if name == "equal":
        return torch.equal(*args)
    if name == "__contains__":
        return args[1] in args[0]
    number = args[0].item()
    return _CASTS.get(name, lambda plain: plain)(number)


def first_changed(questions: Sequence[Question], leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The first question with another answer, and that answer; empty if all are as they were."""
    known: dict[int, Any] = {}
    with torch.no_grad():
        for question in questions:
            found = question.ask(leaves, known)
            if found != question.answer:
                return question, found
    return ()


def holds_recipe(argument: Any) -> bool:
    """Whether an argument depends on the batch."""
    if isinstance(argument, (Leaf, Recipe)):
        return True
    if isinstance(argument, (tuple, list)):
        return any(map(holds_recipe, argument))
    return isinstance(argument, dict) and any(map(holds_recipe, argument.values()))


def _cook(argument: Any, leaves: Sequence[Any], known: dict[int, Any]) -> Any:
    if isinstance(argument, Leaf):
        return leaves[argument.position].detach().cpu()
    if isinstance(argument, Recipe):
        if id(argument) not in known:
            args = _cook(argument.args, leaves, known)
            known[id(argument)] = argument.func(*args, **_cook(argument.kwargs, leaves, known))
        return known[id(argument)]
    if isinstance(argument, (tuple, list)):
        return type(argument)(_cook(item, leaves, known) for item in argument)
    if isinstance(argument, dict):
        return {key: _cook(item, leaves, known) for key, item in argument.items()}
    return argument
