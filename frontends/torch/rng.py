"""Random operators: which calls draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .masks import bernoulli

if TYPE_CHECKING:
    from .program import Call

# probability arguments: at zero the operator draws nothing
_PROBABILITY = {"dropout_p", "p", "dropout"}
_DROPOUTS = ("dropout", "attention", "rnn", "lstm", "gru")


def draws(call: Call) -> bool:
    """Whether a call draws random numbers: tagged so, and not switched off by its arguments."""
    op = call.target
    if op is bernoulli:
        return True
    if not isinstance(op, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    if op._schema.name.endswith("_backward"):
        return False  # that of attention repeats the mask of the forward, from its saved seed
    given = arguments(call)
    if any(given.get(name, True) in (False, None) for name in ("train", "training")):
        return False
    if any(word in op._schema.name for word in _DROPOUTS):
        rates = [given[name] for name in _PROBABILITY if name in given]
        return not (rates and all(rate == 0 for rate in rates))
    return True


def arguments(call: Call) -> dict[str, Any]:
    """Arguments by their names in the schema, defaults filled in."""
    op = call.target
    assert isinstance(op, torch._ops.OpOverload)
    found = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only]
    found.update(zip(positional, call.args, strict=False))
    found.update(call.kwargs)
    return found
