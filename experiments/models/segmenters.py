"""Dense prediction: U-Net, PSPNet on a ResNet. Images in, class scores of every pixel out."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from .classifiers import RESNET, Bottleneck, unit


def _double(before: int, after: int, norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (before, after):
        layers.append(nn.Conv2d(width, after, 3, padding=1))
        if norm:
            layers.append(nn.BatchNorm2d(after))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015: levels down and up, with skips; padded convolutions."""

    def __init__(
        self, width: int = 64, levels: int = 4, classes: int = 2, *, norm: bool = False
    ) -> None:
        super().__init__()
        widths = [width * 2**k for k in range(levels + 1)]
        pairs = list(pairwise(widths))
        self.first = _double(3, width, norm)
        self.down = nn.ModuleList(_double(a, b, norm) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.merge = nn.ModuleList(_double(b, a, norm) for a, b in reversed(pairs))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (batch, classes, height, width); both sizes a multiple of 2 ** levels."""
        x = self.first(x)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(functional.max_pool2d(x, 2))
        for up, block in zip(self.up, self.merge, strict=True):
            x = block(torch.cat([skips.pop(), up(x)], dim=1))
        scores: torch.Tensor = self.last(x)
        return scores


class PSPNet(nn.Module):
    """Zhao et al. 2017 on ResNet-101: pyramid pooling over features of an eighth of the size."""

    def __init__(self, depth: int = 101, classes: int = 21, bins: tuple[int, ...] = (1, 2, 3, 6)):
        super().__init__()
        layers: list[nn.Module] = [
            unit(3, 64, 3, 2), unit(64, 64, 3), unit(64, 128, 3), nn.MaxPool2d(3, 2, 1)
        ]  # fmt: skip
        before = 128
        for number, count in enumerate(RESNET[depth]):
            for block in range(count):
                stride = 2 if number == 1 and block == 0 else 1
                layers.append(Bottleneck(before, 64 * 2**number, stride))
                before = 256 * 2**number
        self.features = nn.Sequential(*layers)
        self.bins = bins
        self.pools = nn.ModuleList(unit(before, before // len(bins), 1) for _ in bins)
        self.head = nn.Sequential(unit(2 * before, 512, 3), nn.Conv2d(512, classes, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (batch, classes, height, width)."""
        size = x.shape[2:]
        x = self.features(x)
        parts = [x]
        for count, pool in zip(self.bins, self.pools, strict=True):
            part = pool(functional.adaptive_avg_pool2d(x, count))
            parts.append(functional.interpolate(part, size=x.shape[2:], mode="bilinear"))
        scores = self.head(torch.cat(parts, dim=1))
        return functional.interpolate(scores, size=size, mode="bilinear")
