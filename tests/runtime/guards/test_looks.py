"""Tensors that are asked about all at once get the answers that each would get alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.guards.guards import Guards
from lowtide.runtime.guards.looks import Looks

from ..models import square

if TYPE_CHECKING:
    from collections.abc import Callable


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def _guards(net: nn.Module) -> Guards:
    return Guards(capture(net, torch.ones(5, 4), square, times="none").program, ())


def _double(net: Any) -> None:
    net[0].weight.data = net[0].weight.data.double()


def _shape(net: Any) -> None:
    net[0].bias.data = torch.zeros(1)


def _strides(net: Any) -> None:
    net[0].weight.data = torch.zeros(4, 3).t()


def _strides_of_one(net: Any) -> None:
    net[2].weight.data = torch.zeros(3, 1).t()


def _kind(net: Any) -> None:
    class Other(torch.Tensor):
        pass

    net[1].running_mean = torch.zeros(3).as_subclass(Other)


def _nothing(net: Any) -> None:
    net[1].running_mean = None


def _frozen(net: Any) -> None:
    net[0].weight.requires_grad_(False)


def _values(net: Any) -> None:
    net[1].running_mean = torch.ones(3)
    net[0].weight = nn.Parameter(torch.ones(3, 4))


@pytest.mark.parametrize(
    "change",
    [_double, _shape, _strides, _strides_of_one, _kind, _nothing, _frozen, _values],
)
def test_a_second_call_notices_what_a_first_one_does(change: Callable[[Any], None]) -> None:
    """Whatever is done to a tensor between calls is taken, or refused, as if it had been so."""
    net, x = _net(), torch.ones(5, 4)
    warm, cold = _guards(net), _guards(net)
    for _ in range(2):
        assert warm.fast(net, square, (x,), {}) is not None
    change(net)
    found, alone = (guards.fast(net, square, (x,), {}) for guards in (warm, cold))
    assert (found is None) is (alone is None) is (change not in (_strides_of_one, _frozen, _values))
    if found is not None and alone is not None:
        assert all(a is b for a, b in zip(found, alone, strict=True))


def test_nothing_is_looked_at_twice() -> None:
    """After one call the tests of single tensors are skipped; another look is remembered anew."""
    net, x = _net(), torch.ones(5, 4)
    guards = _guards(net)
    asked: list[Any] = []

    class Asked:
        def __contains__(self, item: Any) -> bool:
            asked.append(item)
            return True

    guards.fast.__globals__["plain"] = Asked()
    for requires in (True, True, False, False):
        net[0].weight.requires_grad_(requires)
        assert guards.fast(net, square, (x,), {}) is not None
    assert len(asked) == 2 * 9  # parameters and buffers, in the first call of each look


def test_what_cannot_be_compared_is_tested_each_time() -> None:
    """One tensor twice, and a PyTorch without the comparison: always unknown, never an error."""
    looks, x = Looks(), torch.ones(2)
    looks.remember(x)
    assert looks.same(torch.zeros(2))
    assert not looks.same(torch.zeros(3))
    looks.remember(x, x)
    assert not looks.same(x, x)
    looks.remember(x)
    assert not looks.same(x)
