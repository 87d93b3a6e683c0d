"""Attributes of modules that are neither Python's numbers nor words: they are guarded as these."""

from __future__ import annotations

import enum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ..schedules import plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


class _Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class _Scale(float):
    pass


CASES = {
    "number of NumPy": (np.float32(2), np.float32(3)),
    "float of NumPy": (np.float64(2), np.float64(3)),
    "enumeration": (_Mode.SUM, _Mode.MEAN),
    "complex": (2j, 3j),
    "bytes": (b"a", b"b"),
    "type of tensors": (torch.float32, torch.bfloat16),
    "type of arrays": (np.dtype("f4"), np.dtype("f8")),
    "layout": (torch.strided, torch.sparse_coo),
    "size": (torch.Size([2]), torch.Size([3])),
    "subclass": (_Scale(2), _Scale(3)),
    "fraction": (Fraction(1, 2), Fraction(1, 3)),
    "slice": (slice(0, 2), slice(0, 3)),
    "class": (nn.ReLU, nn.Tanh),
    "function of PyTorch": (torch.relu, torch.tanh),
    "not a number": (float("nan"), 1.0),
}


class _Chosen(nn.Module):
    def __init__(self, **own: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        for name, item in own.items():
            setattr(self, name, item)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 2 if repr(self.chosen) == self.first else 3
        out: torch.Tensor = self.layer(x) * scale
        return out.square().mean()


@pytest.mark.parametrize("where", ["module", "class"])
@pytest.mark.parametrize("kind", CASES)
def test_an_attribute_of_any_plain_kind_is_guarded(kind: str, where: str) -> None:
    """The same one replays, another is refused by name, and the first one again is fine."""
    before, after = CASES[kind]
    made = type("Made", (_Chosen,), {"chosen": before, "__module__": __name__})
    model = (
        made(first=repr(before)) if where == "class" else _Chosen(chosen=before, first=repr(before))
    )
    holder: Any = made if where == "class" else model
    batch = torch.randn(2, 4)
    captured = capture(model, batch, times="none", device="cpu")
    keep = Schedule.keep_everything(captured.graph)
    module = replay(captured, plan_of(captured.graph, keep))
    assert torch.equal(module(batch), model(batch))
    holder.chosen = after
    with pytest.raises(
        ReplayError, match=r"chosen is .* and was .* when captured|another function"
    ):
        module(batch)
    holder.chosen = before
    assert torch.equal(module(batch), model(batch))
