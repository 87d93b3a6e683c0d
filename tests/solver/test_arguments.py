"""Wrong arguments of the public functions are errors of one line that help."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import lowtide
from lowtide.frontends.chains import linear_chain
from lowtide.solver.errors import InputError

CHAIN = linear_chain(3)
MODEL, X = torch.nn.Linear(2, 2), torch.ones(1, 2)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "words"),
    [
        ("fit", (MODEL, X), {"budget": "50%"}, "no argument budget=: did you mean memory_budget="),
        ("fit", (MODEL, X), {}, "missing .*'memory_budget'; it needs model, batch, memory"),
        ("fit", (MODEL, X, "50%"), {}, "too many positional arguments; it needs model, batch, m"),
        ("fit", (MODEL, X), {"memory_budget": 1, "zzz": 1}, "argument zzz=: it takes model, batch"),
        ("fit_trainer", (None,), {"budget": "50%"}, "fit_trainer: missing .*'memory_budget'"),
        ("backend", (), {"budget": "50%"}, "backend has .*: did you mean memory_budget="),
        ("partitioner", (), {}, "partitioner: missing .*'memory_budget'"),
        ("solve", (CHAIN,), {"memory_budget": "50%"}, "solve has .*: did you mean budget="),
    ],
)  # fmt: skip
def test_wrong_arguments_name_the_right_ones(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    """A near name is proposed; what is missing is named."""
    with pytest.raises(InputError, match=words) as caught:
        getattr(lowtide, name)(*args, **kwargs)
    assert "\n" not in str(caught.value)


def test_signatures_stay() -> None:
    """Help and editors see the arguments of the function itself, and its own TypeErrors stay."""
    assert "memory_budget" in inspect.signature(lowtide.fit).parameters
    with pytest.raises(TypeError, match="no len"):
        lowtide.fit(MODEL, X, memory_budget=1, shapes=3)  # type: ignore[arg-type]
