"""Training steps that change buffers: as ops can do in place, and otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..frontends.models import Lambda, Made, rows
from .models import square


class Step(Lambda):
    """With one input by name."""

    def forward(self, x: torch.Tensor) -> Any:
        """Run the body."""
        return self.body(self, x)


def _images(seed: int = 1) -> torch.Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def _net(**norm: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5, **norm), nn.ReLU(),
        nn.Conv2d(5, 5, 3, padding=1), nn.BatchNorm2d(5, momentum=0.3, **norm), nn.SiLU(),
    )  # fmt: skip


def images() -> Made:
    """Two batch norms in a chain."""
    return _net(), (_images(),), square


def channels_last() -> Made:
    """Channels next to each other."""
    x = _images().to(memory_format=torch.channels_last)
    return nn.Sequential(nn.BatchNorm2d(3), nn.SiLU(), nn.BatchNorm2d(3), nn.SiLU()), (x,), square


def mixed_layouts() -> Made:
    """Images with channels next to each other, weights not; gradients in another layout."""
    return _net(), (_images().to(memory_format=torch.channels_last),), square


def mixed() -> Made:
    """Activations in bfloat16, scales and statistics in float32."""
    model = _net().bfloat16()
    model[1].float()
    model[4].float()
    return model, (_images().bfloat16(),), lambda out: square(out.float())


def unscaled() -> Made:
    """Without scales the statistics' type alone makes the kernel compute in float32."""
    model = _net(affine=False).bfloat16()
    model[1].float()
    model[4].float()
    return model, (_images().bfloat16(),), lambda out: square(out.float())


def averages() -> Made:
    """Moving averages of three kinds and counters, one of them changed twice."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x)
        with torch.no_grad():
            self.one.mul_(0.9).add_(h.mean(0), alpha=0.1)
            self.two.lerp_(h.amax(0), 0.25)
            self.seen.sub_(h.sum(0)).clamp_(-1.0, 1.0)
            self.count.add_(1).mul_(2)
        return self.lin(h.sin())

    model = Step(body)
    model.register_buffer("seen", torch.ones(4))
    model.register_buffer("count", torch.tensor(1))
    return model, (rows(),), square


def read_before() -> Made:
    """Old contents are read, by ops that run again too, before they change."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = (self.lin(x) * self.one.exp()).sin() + self.two.mean()
        with torch.no_grad():
            self.one.mul_(0.5)
            self.two.mul_(0.9).add_(h.mean(0))
        return self.lin(h).sin()

    return Step(body), (rows(),), square


def results_unread() -> Made:
    """A batch norm that is called for its statistics."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x).sin()
        self.norm(h.detach())
        return self.lin(h).cos()

    return Step(body, norm=nn.BatchNorm1d(4)), (rows(),), square


def twice() -> Made:
    """A norm that is used twice: the second use reads what the first one made."""
    norm = nn.BatchNorm1d(4)
    return Step(lambda self, x: self.n(self.n(self.lin(x)).sin()), n=norm), (rows(),), square


def shared_statistics() -> Made:
    """Two norms on the very same buffers."""
    a, b = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    b.running_mean, b.running_var = a.running_mean, a.running_var
    return Step(lambda self, x: self.b(self.a(self.lin(x)).sin()), a=a, b=b), (rows(),), square


def cumulative() -> Made:
    """A cumulative average, whose counter is read after it has counted."""
    norm = nn.BatchNorm1d(4, momentum=None)
    return Step(lambda self, x: self.n(self.lin(x)).sin(), n=norm), (rows(),), square


def read_after() -> Made:
    """New contents that the step reads, itself or by a view, and old ones that it reads late."""

    def body(self: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            self.one.mul_(0.9)
            new = self.two + 1.0
            late = self.two.view(2, 2).sum() * x.sum()
            self.two.copy_(new)
        return self.lin(x * self.one[:2].sum()) * late

    return Step(body), (rows(),), square


def other_type() -> Made:
    """A whole number that is scaled by a fraction, and a row that grows to a matrix."""

    def body(self: Any, x: torch.Tensor) -> Any:
        self.whole.copy_(self.whole * 1.5 + 1)
        self.one.copy_((self.one + x.detach())[0])
        self.two.copy_(self.two + self.two[0])
        return self.lin(x)

    model = Step(body)
    model.register_buffer("whole", torch.arange(4))
    return model, (rows(),), square


def narrow() -> Made:
    """All of it in bfloat16, statistics too."""
    return _net().bfloat16(), (_images().bfloat16(),), lambda out: square(out.float())


def instances() -> Made:
    """Instance norm, which updates by way of copies for each row."""
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    return (
        nn.Sequential(nn.Linear(4, 4), nn.Unflatten(0, (2, 4)), norm),
        (torch.randn(8, 4),),
        square,
    )
