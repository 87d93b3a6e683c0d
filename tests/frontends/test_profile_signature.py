"""Signatures: equal for calls that cost the same, different for all others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lowtide.frontends.torch.costs.signature import signature
from lowtide.frontends.torch.masks import bernoulli
from lowtide.frontends.torch.program import Call, ValueRef

from .one_op import meta_of

aten: Any = torch.ops.aten
X = torch.rand(8, 8)


def _key(args: tuple[Any, ...], *values: torch.Tensor, target: Any = None, **kwargs: Any) -> str:
    call = Call(target or aten.add.Tensor, args, kwargs, (9,), False)
    return signature(call, [meta_of(value) for value in values]).key


def test_value_numbers_do_not_matter() -> None:
    """Other values of the same looks make the same signature."""
    a = _key((ValueRef(0), ValueRef(1)), X, X, X)
    assert a == _key((ValueRef(2), ValueRef(0)), X, X, X)


@pytest.mark.parametrize(
    "other",
    [
        X.t(),
        X.double(),
        torch.rand(8, 9)[:, 1:],
        torch.rand(72).as_strided((8, 8), (8, 1), 1),
        torch.rand(8, 1).expand(8, 8),
        torch.rand(8, 7),
    ],
    ids=["transposed", "dtype", "strides", "offset", "broadcast", "shape"],
)
def test_layout_matters(other: torch.Tensor) -> None:
    """Type, shape, strides and misalignment each make another signature."""
    args = (ValueRef(0), ValueRef(1))
    assert _key(args, X, X) != _key(args, X, other)


def test_sharing_matters() -> None:
    """x * x reads half of what x * y reads."""
    assert _key((ValueRef(0), ValueRef(0)), X, X) != _key((ValueRef(0), ValueRef(1)), X, X)


def test_literals_are_told_apart() -> None:
    """1, 1.0, True, infinities, types and nested lists all differ; tuples and lists do not."""
    literals: list[Any] = [
        *(1, 1.0, True, None, "1", math.inf, -math.inf, [1, 2], [[1], 2]),
        *(torch.float32, torch.device("cpu"), torch.strided, torch.contiguous_format),
        slice(0, 1),
        slice(0, 2),
        {"a": 1},
    ]
    keys = [_key((ValueRef(0), literal), X) for literal in literals]
    assert len(set(keys)) == len(keys)
    assert _key((ValueRef(0), (1, 2)), X) == keys[7]
    assert _key((ValueRef(0), math.nan), X) == _key((ValueRef(0), math.nan), X)


def test_keywords_and_targets_matter() -> None:
    """The order of keywords does not count, their names and the overload do."""
    ref = (ValueRef(0),)
    assert _key(ref, X, a=1, b=2) == _key(ref, X, b=2, a=1)
    assert _key(ref, X, a=1) != _key(ref, X, b=1)
    assert _key(ref, X) != _key(ref, X, target=aten.add.Scalar)


def test_python_callables_stay_out_of_files() -> None:
    """A signature with a Python object in it means nothing in another process, but for our own."""
    metas = [meta_of(X)]
    assert signature(Call(aten.neg.default, (ValueRef(0),), {}, (1,), False), metas).portable
    assert signature(Call(bernoulli, (), {}, (1,), False), metas).portable
    assert not signature(Call(len, (ValueRef(0),), {}, (1,), False), metas).portable
    assert not signature(Call(aten.neg.default, (object(),), {}, (1,), False), metas).portable
