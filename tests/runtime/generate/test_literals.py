"""Arguments as source: what is written evaluates to what was given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lowtide.runtime.generate.literals import Namespace, write_argument


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -4, 0.1, -1e-30, 1e300, "sum", float("inf"), float("-inf"), [], [1, [2.5]],
        (), (1,), (1, (2, None)), {"a": [1], "b": float("inf")}, slice(None, 3, None), ...,
        torch.float32, torch.device("cpu"), torch.strided, torch.contiguous_format,
        torch.Size([2, 3]), 2**70, complex(1, 2),
    ],
    ids=repr,
)  # fmt: skip
def test_round_trip(value: Any) -> None:
    """Every kind of literal comes back equal, and of the same type."""
    names = Namespace()
    found = eval(write_argument(value, names, lambda _: None), dict(names.globals))
    assert found == value
    assert type(found) is type(value) or isinstance(value, torch.Size)


def test_nan() -> None:
    """NaN comes back as NaN."""
    names = Namespace()
    assert math.isnan(eval(write_argument(float("nan"), names, lambda _: None), names.globals))


def test_values_become_names() -> None:
    """Placeholders are replaced wherever they stand."""
    names = Namespace()

    def name_of(value: Any) -> str | None:
        return "v7" if value == "seven" else None

    assert write_argument(["seven", {"k": ("seven",)}], names, name_of) == "[v7, {'k': (v7,)}]"


def test_names_do_not_collide() -> None:
    """Different objects get different names, the same object keeps its name."""
    names = Namespace()
    first, second = object(), object()
    assert names.bind(first, "x") != names.bind(second, "x")
    assert names.bind(first, "anything") == names.bind(first, "x")
    assert names.bind(object(), "v3") != "v3"
    assert names.bind(object(), "class") != "class"
