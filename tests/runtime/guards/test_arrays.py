"""Arrays that are no tensors: what a step reads from them is guarded, bit for bit."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.outside.arrays import Numbers
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError

from ...frontends.models import rows
from ...plans import recomputing
from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")
SHARED = np.array([2.0, 1.0])


class _Net(nn.Module):
    """Reads arrays in an attribute, a class, containers, an array of objects and a global."""

    shift = np.array([0.5])

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.mask = np.array([1, 0, 1, 1], dtype=np.int64)
        self.nested: dict[str, Any] = {"weights": [np.array([1.0, 2.0])], "unread": np.zeros(2)}
        self.objects: Any = np.array([3.0, [1.0, 2.0]], dtype=object)
        self.typed, self.raw = array("d", [1.0, 2.0]), bytearray(b"\x01\x02")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every kind of array has its own share of the result."""
        y = self.linear(x) * torch.from_numpy(self.mask) + float(self.shift[0])
        y = y * float(self.nested["weights"][0].sum()) * self.objects[1][0]
        return torch.mul(y, self.typed[0] * self.raw[0] * float(SHARED[0]))


def _replayed(model: nn.Module, loss: Any = square) -> ReplayModule:
    captured = capture(model, rows(), loss, times="none")
    return replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))


def _set(name: str, value: Any) -> Callable[[_Net], None]:
    return lambda net: setattr(net, name, value)


def _fill(net: _Net) -> None:
    net.mask[1] = 1


def _fill_nested(net: _Net) -> None:
    net.nested["weights"][0][1] = 3.0


def _fill_object(net: _Net) -> None:
    net.objects[1][0] = 4.0


def _fill_typed(net: _Net) -> None:
    net.typed[0] = 5.0


def _fill_raw(net: _Net) -> None:
    net.raw[0] = 5


_CHANGES: dict[str, tuple[Callable[[_Net], None], str]] = {
    "in place": (_fill, r"mask is \[1, 1, 1, 1\] and was \[1, 0, 1, 1\]"),
    "another": (_set("mask", np.zeros(4, dtype=np.int64)), r"mask is \[0, 0, 0, 0\] and was"),
    "type": (_set("mask", np.ones(4)), r"mask is float64\[4\] and was int64\[4\]"),
    "no array": (_set("mask", 1.0), r"mask is 1\.0 and was ndarray of int64\[4\]"),
    "of the class": (_set("shift", np.array([0.25])), r"shift is \[0\.25\] and was \[0\.5\]"),
    "in containers": (_fill_nested, r"nested\['weights'\]\[0\] is \[1\.0, 3\.0\] and was"),
    "of objects": (_fill_object, r"objects\[1\] is \[4\.0, 2\.0\] and was \(1\.0, 2\.0\)"),
    "array": (_fill_typed, r"typed is \[5\.0, 2\.0\] and was \[1\.0, 2\.0\]"),
    "bytearray": (_fill_raw, r"raw is \[5, 2\] and was \[1, 2\]"),
}


@pytest.mark.parametrize("kind", _CHANGES)
def test_an_array_that_a_model_reads_is_guarded(kind: str) -> None:
    """Its change is refused by name, and the same contents in another array are welcome."""
    model = _Net()
    module = _replayed(model)
    module(rows())
    model.nested["unread"][0] = 1.0
    model.mask = model.mask.copy()
    assert torch.equal(module(rows()), square(model(rows())))
    change, words = _CHANGES[kind]
    change(model)
    with pytest.raises(ReplayError, match=words):
        module(rows())


def test_an_array_in_a_closure_or_global_is_guarded() -> None:
    """Those of the user's functions."""
    weights = np.array([0.5, 1.0])

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean() * float(weights[0]) * float(SHARED[0])

    module = _replayed(nn.Linear(4, 4), loss)
    module(rows())
    weights[1] = 2.0
    with pytest.raises(ReplayError, match=r"weights of the loss is \[0\.5, 2\.0\] and was"):
        module(rows())
    weights[1] = 1.0
    SHARED[1] = 7.0
    try:
        with pytest.raises(ReplayError, match=r"global SHARED of the loss is \[2\.0, 7\.0\]"):
            module(rows())
    finally:
        SHARED[1] = 1.0
    module(rows())


def test_fit_plans_another_array_ahead() -> None:
    """As other numbers from outside: refused until prepared."""
    model = _Net()
    module = fit(
        model, rows(), memory_budget="100%", loss_fn=square, times="roofline", time_limit=5
    )
    model.mask[1] = 1
    with pytest.raises(ReplayError, match=r"mask is .* prepare\(\)"):
        module(rows())
    module.prepare(rows())
    assert torch.equal(module(rows()), square(model(rows())))
    model.mask[1] = 0
    assert torch.equal(module(rows()), square(model(rows())))


def test_an_array_among_the_arguments_is_guarded_by_what_it_holds() -> None:
    """The same object with other contents is another call."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: Any) -> torch.Tensor:
            return torch.mul(self.linear(x), float(scale[0])).square().mean()

    scale = np.array([2.0, 3.0])
    captured = capture(Scaled(), (rows(), scale), times="none")
    module = replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))
    module(rows(), scale.copy())
    scale[0] = 4.0
    with pytest.raises(ReplayError, match=r"argument 1 is \[4\.0, 3\.0\] and was \[2\.0, 3\.0\]"):
        module(rows(), scale)


def test_a_step_that_changes_an_array_is_refused_and_the_array_put_back() -> None:
    """As one that changes another attribute."""

    class Counting(_Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Counts its calls."""
            self.mask[0] += 1
            return super().forward(x)

    model = Counting()
    with pytest.raises(CaptureError, match="'mask'"):
        capture(model, rows(), square)
    assert model.mask.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("size", [0, 3, 10_000, 9_999])
@pytest.mark.parametrize("kind", ["plain", "strided", "masked"])
def test_contents_are_compared_bit_for_bit(size: int, kind: str) -> None:
    """Small and large, in any layout; NaN is itself, and -0.0 is not 0.0."""
    base = np.linspace(-1, 1, 2 * size)
    base[:1] = np.nan
    made: Any = base[::2] if kind == "strided" else base[:size]
    if kind == "masked":
        made = np.ma.MaskedArray(made, mask=made > 0)
    held = Numbers.of(made)
    assert held is not None
    assert held.same(made)
    assert held.same(made.copy())
    assert not held.same(made.astype(np.float32))
    assert not held.same(made.reshape(1, size))
    if size:
        made[-1] = 0.0
        zero = Numbers.of(made)
        made[-1] = -0.0
        assert zero is not None
        assert not zero.same(made)
        assert not held.same(made)
    if kind == "masked" and size:
        held = Numbers.of(made)
        made.mask[0] = not made.mask[0]
        assert held is not None
        assert not held.same(made)
    if size > 8 and kind != "masked":
        assert "another array in 1 of" in held.difference(made)
