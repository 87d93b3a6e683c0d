"""Small training steps of different kinds: dropout, batch norm, tied weights, views, autocast."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile

from ..models import Case as Case
from ..models import Cnn, Gpt, noise, tokens, transformer
from ..models import Mlp as Mlp
from ..models import square as square

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured


class Unet(nn.Module):
    """Long skips, transposed convolution, pooling with indices."""

    def __init__(self, c: int = 4) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, c, 3, padding=1), nn.Conv2d(c, 2 * c, 3, padding=1)
        self.middle = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.merge2, self.merge1 = (
            nn.Conv2d(3 * c, c, 3, padding=1),
            nn.Conv2d(2 * c, 1, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> Any:
        """Down, up, and across."""
        s1 = F.relu(self.down1(x))
        pooled: Any = F.max_pool2d(s1, 2, return_indices=True)
        p1, indices = pooled
        s2 = F.relu(self.down2(p1))
        y = self.up(F.relu(self.middle(F.avg_pool2d(s2, 2))))
        y = F.relu(self.merge2(torch.cat([y, s2], 1)))
        return self.merge1(torch.cat([F.max_unpool2d(y, indices, [2, 2]), s1], 1))


class Views(nn.Module):
    """In-place writes through views, a counter buffer, an unused parameter."""

    calls: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 24), nn.Linear(8, 8)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(24))

    def forward(self, x: torch.Tensor) -> Any:
        """Chunks scaled in place, slices written, a diagonal bumped."""
        h = self.a(x)
        with torch.no_grad():
            self.calls += 1
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        keep = h.exp()
        q, k, v = h.chunk(3, dim=-1)
        q = q * 1.0
        q.mul_(0.5)
        buffer = torch.zeros_like(k)
        buffer[:, 1::2] = k[:, 1::2] * 3
        scores = q @ buffer.transpose(0, 1)
        scores.diagonal().add_(1.5)
        out = self.b(torch.softmax(scores, -1) @ v)
        return out + keep.view(keep.shape[0], 3, 8).sum(1)


class Autocast(nn.Module):
    """Mixed precision inside forward, with a float32 island."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> Any:
        """bfloat16 linear layers around a float32 norm."""
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            h = torch.tanh(self.a(x))
            with torch.autocast("cpu", enabled=False):
                h = F.layer_norm(h.float(), (16,))
            return self.b(h).float()


_MAKERS: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(Mlp(), square, noise(7, 24)),
    "cnn": lambda: Case(Cnn(), square, noise(3, 3, 8, 8)),
    "gpt": lambda: Case(Gpt(), None, tokens(29, 3, 8)),
    "unet": lambda: Case(Unet(), square, noise(2, 1, 16, 16)),
    "views": lambda: Case(Views(), lambda out: out.sin().sum(), noise(5, 8)),
    "autocast": lambda: Case(Autocast(), square, noise(6, 16)),
    "gpt2": lambda: transformer("gpt2", depth=2, width=16, rows=2, length=8),
    "llama": lambda: transformer("llama", depth=2, width=16, rows=2, length=8),
    "bert": lambda: transformer("bert", depth=2, width=16, rows=2, length=8),
}
SMALL = ("mlp", "cnn", "gpt", "unet", "views", "autocast")
TRANSFORMERS = ("gpt2", "llama", "bert")


def make(name: str) -> Case:
    """A fresh case, the same each time."""
    torch.manual_seed(len(name))
    return _MAKERS[name]()


@functools.cache
def profiled(name: str) -> tuple[Case, Captured]:
    """A case and its profiled capture, shared by tests that leave it as it is."""
    case = make(name)
    return case, profile(capture(case.model, case.batch(0), case.loss_fn), budget_s=5, cache=False)


@functools.cache
def _captured(name: str) -> tuple[Case, Captured]:
    case = make(name)
    return case, capture(case.model, case.batch(0), case.loss_fn)


def fresh(name: str) -> tuple[Case, Captured]:
    """A case with a model of its own and its capture, for tests that change the model."""
    case, captured = _captured(name)
    model = copy.deepcopy(case.model)
    return replace(case, model=model), replace(captured, model=model)
