"""What only the backward of a custom function reads, or a function's own attributes, is guarded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError

from ...frontends.models import Lambda, rows
from ...plans import recomputing
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("one_thread")
SCALE = 1.0
SETTINGS = SimpleNamespace(scale=1.0)


class Global(torch.autograd.Function):
    """Scales gradients by a global number."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The identity."""
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        """The scaled gradient."""
        return gradients[0] * SCALE


def scaled(gradient: torch.Tensor) -> torch.Tensor:
    """Scaled by a global number."""
    return gradient * SCALE


class Called(Global):
    """The number is read in a function that backward calls."""

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        """The scaled gradient."""
        return scaled(gradients[0])


class Looked(Global):
    """The number is an attribute of an object."""

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        """The scaled gradient."""
        return gradients[0] * SETTINGS.scale


def set_global(value: float) -> None:
    """Change the global number."""
    globals()["SCALE"] = value


def set_attribute(value: float) -> None:
    """Change the object's number."""
    SETTINGS.scale = value


READ: dict[str, tuple[Any, Callable[[float], None], str]] = {
    "global": (Global, set_global, "SCALE of "),
    "called": (Called, set_global, "SCALE of "),
    "object": (Looked, set_attribute, r"SETTINGS\.scale of "),
}


def replayed(model: nn.Module, loss: Any = None) -> Any:
    """With much recomputation."""
    captured = capture(model, rows(), loss, times="none")
    return replay(captured, plan_of(captured.graph, recomputing(captured.graph, 100)))


@pytest.mark.parametrize("how", list(READ))
def test_numbers_that_a_backward_reads_are_guarded(how: str) -> None:
    """Another factor of the gradients is refused, not ignored."""
    function, put, label = READ[how]
    module = replayed(Lambda(lambda self, x: function.apply(self.lin(x)).square().sum()))
    module(rows())
    try:
        put(2.0)
        with pytest.raises(ReplayError, match=rf"{label}.* is 2\.0 and was 1\.0"):
            module(rows())
    finally:
        put(1.0)
    module(rows())


def test_numbers_in_the_closure_of_a_backward_are_guarded() -> None:
    """A function class that is made inside another function."""
    settings = {"scale": 1.0}

    class Closed(Global):
        """Reads a dict of its closure."""

        @staticmethod
        def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
            """The scaled gradient."""
            return gradients[0] * settings["scale"]

    def body(self: Any, x: torch.Tensor) -> Any:
        return Closed.apply(self.lin(x)).square().sum()  # type: ignore[no-untyped-call]

    module = replayed(Lambda(body))
    module(rows())
    settings["scale"] = 2.0
    with pytest.raises(ReplayError, match=r"settings\['scale'\] of .* is 2\.0 and was 1\.0"):
        module(rows())


def test_attributes_of_functions_are_guarded() -> None:
    """A loss that keeps its weight as an attribute of itself."""

    def loss(out: torch.Tensor) -> Any:
        return out.square().sum() * loss.weight  # type: ignore[attr-defined]

    loss.weight = 1.0  # type: ignore[attr-defined]
    loss.note = "first"  # type: ignore[attr-defined]
    module = replayed(nn.Linear(4, 4), loss)
    loss.note = "second"  # type: ignore[attr-defined]
    module(rows())  # what it does not read may change
    loss.weight = 2.0  # type: ignore[attr-defined]
    with pytest.raises(ReplayError, match=r"weight of the loss is 2\.0 and was 1\.0"):
        module(rows())
