"""A number of another type is another number: with integer tensors, results would differ."""

from __future__ import annotations

import pickle
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.outside.alike import same_literal
from lowtide.frontends.torch.outside.places import Content
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ...frontends.models import Lambda, rows
from ..schedules import plan_of

if TYPE_CHECKING:
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE: Any = 2
PAIRS = [
    (2, 2.0),
    (1, True),
    (True, 1),
    (0.0, False),
    (3.0, 3),
    (2.5, torch.tensor(2.5).numpy()[()]),
]


def replayed(model: nn.Module, loss: Any = None) -> ReplayModule:
    """Without recomputation."""
    captured = capture(model, rows(), loss, times="none")
    return replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


@pytest.mark.parametrize(("was", "now"), PAIRS, ids=repr)
def test_an_attribute_of_another_type_is_refused(was: Any, now: Any) -> None:
    """By name, though both are equal; the old value passes, also in a copy by pickle."""
    model: Any = Lambda(lambda self, x: self.lin(x).square().mean() * self.scale)
    model.scale = was
    module = replayed(model)
    module(rows())
    model.scale = now
    with pytest.raises(ReplayError, match=r"scale is .* and was .* when captured"):
        module(rows())
    model.scale = pickle.loads(pickle.dumps(was))
    module(rows())


def test_not_a_number_stays_one() -> None:
    """NaN is equal to nothing, and still the same setting."""
    model: Any = Lambda(lambda self, x: self.lin(x).square().mean() + (self.scale != self.scale))
    model.scale = float("nan")
    module = replayed(model)
    model.scale = float("nan")
    module(rows())
    model.scale = 1.0
    with pytest.raises(ReplayError, match=r"scale is 1\.0 and was nan"):
        module(rows())


def test_a_function_may_have_any_name() -> None:
    """Names of attributes are not taken for those that the guard needs itself."""
    for name in ("v", "t0", "a0", "m1", "model", "args", "found"):
        model: Any = Lambda(lambda self, x: self.lin(x).square().mean() * self.scale)
        model.scale = 2
        setattr(model, name, lambda x: x)
        module = replayed(model)
        module(rows())
        module(rows())


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ([1, 2], [1, 2.0]), ((1,), (True,)), (deque([0]), deque([False])), ({1, 2}, {1.0, 2}),
        ({1}, {True}), ({"a": 1}, {"a": 1.0}), ({1: "a"}, {True: "a"}),
        pytest.param({1, "b"}, {1.0, "b"}, id="a set of unlike members"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_container_of_other_types_is_refused(was: Any, now: Any) -> None:
    """In a closure: what it holds is compared with types, keys and members of sets as well."""

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean() * sum(type(i) is int for i in (*held, *_values(held)))

    held = was
    module = replayed(nn.Linear(4, 4), loss)
    module(rows())
    held = pickle.loads(pickle.dumps(was))
    module(rows())
    held = now
    with pytest.raises(ReplayError, match=r"held.* is .* and was .* when captured"):
        module(rows())


def _values(held: Any) -> Any:
    return held.values() if isinstance(held, dict) else ()


def test_a_global_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of another value is."""
    module = replayed(nn.Linear(4, 4), lambda out: out.square().mean() * SCALE)
    module(rows())
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(ReplayError, match=r"SCALE.* is 2\.0 and was 2 when captured"):
        module(rows())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, (2,)), (1, (2.0,))), (frozenset({1}), frozenset({True})), ({1}, {1.0}),
        (slice(0, 2), slice(False, 2)), (Content((1,)), Content((1.0,))),
        (Content({1: 1}), Content({1: True})), (Content(frozenset({0})), Content(frozenset({0.0}))),
    ],
    ids=repr,
)  # fmt: skip
def test_constants_are_alike_if_what_they_hold_is(one: Any, other: Any) -> None:
    """In Python they are equal."""
    assert same_literal(one, pickle.loads(pickle.dumps(one)))
    assert not same_literal(one, other)
    assert not same_literal(other, one)
