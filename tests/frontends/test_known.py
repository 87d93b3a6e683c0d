"""Branches on values that follow from constants: the trace takes the path of the plain run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.export import is_fake
from lowtide.solver.errors import CaptureError

from .reference import compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured


class Asking(nn.Module):
    """Scales its output by what a question gives."""

    def __init__(self, ask: Callable[[torch.Tensor], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.ask = ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scaled mean."""
        out: torch.Tensor = (self.layer(x) * self.ask(x)).mean()
        return out


def captured_with(ask: Callable[[torch.Tensor], float]) -> tuple[Asking, torch.Tensor, Captured]:
    """The model that asks, an input, and its captured step."""
    torch.manual_seed(0)
    model, x = Asking(ask), torch.randn(3, 4)
    return model, x, capture(model, x, times="none")


def packed(_x: torch.Tensor) -> float:
    """Whether positions restart, as model libraries ask before they build a mask."""
    positions = torch.arange(6).unsqueeze(0).expand(3, -1)
    restarts = (torch.diff(positions, prepend=positions[:, :1] - 1) != 1).cumsum(-1)
    return 2.0 if (restarts[:, -1] == 0).all() else 3.0


def numbers(_x: torch.Tensor) -> float:
    """Every way to take numbers out of a tensor."""
    steps = torch.arange(1, 5)
    first = [10, 20, 30][steps[0]] + int(steps[1]) + float(steps[2]) + steps[3].item()
    return float(first + torch.equal(steps, steps.clamp(min=1)))


def causal(_x: torch.Tensor) -> float:
    """Whether a mask is the causal one."""
    mask = torch.full((5, 5), float("-inf")).triu(1)
    return 2.0 if (mask == torch.full((5, 5), -float("inf")).triu(1)).all() else 3.0


@pytest.mark.parametrize("ask", [packed, numbers, causal])
def test_questions_about_constants_are_answered(ask: Callable[[torch.Tensor], float]) -> None:
    """What the plain run is told, the trace is told: results agree in every bit."""
    model, x, captured = captured_with(ask)
    assert compare(model, lambda: (x,), captured) == []


def of_input(x: torch.Tensor) -> float:
    """A question about the batch."""
    return 2.0 if (x > 0).any() else 3.0


def of_random(_x: torch.Tensor) -> float:
    """A question about random numbers."""
    return 2.0 if (torch.randint(0, 9, (3,)) > 4).any() else 3.0


def of_changed(_x: torch.Tensor) -> float:
    """A question about a constant that was changed in place."""
    steps = torch.zeros(3)
    steps.add_(1)
    return 2.0 if steps.all() else 3.0


def of_changed_base(x: torch.Tensor) -> float:
    """A question about a view whose base was written to from the batch."""
    steps = torch.zeros(3)
    first = steps[:2]
    steps[:] = x[0, :3].detach()
    return 2.0 if first.all() else 3.0


def of_changed_late(x: torch.Tensor) -> float:
    """The same, asked in the trace only."""
    steps = torch.zeros(3)
    first = steps[:2]
    steps[:] = x[0, :3].detach()
    return 2.0 if is_fake(x) or first.all() else 3.0


@pytest.mark.parametrize("ask", [of_input, of_random, of_changed, of_changed_base, of_changed_late])
def test_other_questions_are_refused(ask: Callable[[torch.Tensor], float]) -> None:
    """Values that can differ from step to step, or that were changed, are never assumed."""
    with pytest.raises(CaptureError, match=r"needs the value of a tensor|cannot be traced"):
        captured_with(ask)


def compiled_or_all(x: torch.Tensor) -> float:
    """Looks at the batch, unless compiled."""
    if torch.compiler.is_compiling():
        return 2.0
    return 3.0 if (x == 7).all() else 2.0


def test_code_that_does_without_values_when_compiled_is_captured() -> None:
    """Code that looks at the batch only if it is not compiled takes its compiled path."""
    model, x, captured = captured_with(compiled_or_all)
    assert compare(model, lambda: (x,), captured) == []


def of_known_late(x: torch.Tensor) -> float:
    """A question about a constant, asked in the trace only."""
    return 2.0 if is_fake(x) or torch.zeros(3)[:2].all() else 3.0


def test_questions_of_the_trace_alone_are_answered() -> None:
    """Code that spares fake tensors, as model libraries do, is answered in the trace."""
    model, x, captured = captured_with(of_known_late)
    assert compare(model, lambda: (x,), captured) == []


def only_plain(_x: torch.Tensor) -> float:
    """What only a plain run may see."""
    return 3.0 if torch.compiler.is_compiling() else 2.0


def test_code_sees_a_plain_run_where_it_can() -> None:
    """Code that asks for no values is not told that it is compiled."""
    model, x, captured = captured_with(only_plain)
    assert compare(model, lambda: (x,), captured) == []
