"""Convolutional classifiers: VGG, ResNet of any depth, MobileNet, DenseNet, GoogLeNet.

Every model takes images (batch, 3, height, width) and gives logits (batch, classes).
"""

from __future__ import annotations

import torch
from torch import nn

VGG = {
    16: (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    19: (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0),
}  # fmt: skip
RESNET = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def unit(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution without bias, batch norm, ReLU."""
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())


def vgg(depth: int = 16, classes: int = 1000, size: int = 224) -> nn.Sequential:
    """Simonyan & Zisserman 2015, without dropout; 0 in the table is a pooling layer."""
    layers: list[nn.Module] = []
    width = 3
    for after in VGG[depth]:
        if after == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(width, after, 3, padding=1), nn.ReLU()]
            width = after
    flat = 512 * (size // 32) ** 2
    head = [nn.Flatten(), nn.Linear(flat, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(4096, classes))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut: He et al. 2016."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            unit(before, width, 1), unit(width, width, 3, stride),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if before != after or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(counts: tuple[int, ...], classes: int = 1000, width: int = 64) -> nn.Sequential:
    """Bottleneck blocks in stages of `counts`, each stage of half the size and twice the width."""
    layers: list[nn.Module] = [unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = width
    for number, count in enumerate(counts):
        for block in range(count):
            stride = 2 if number and block == 0 else 1
            layers.append(Bottleneck(before, width * 2**number, stride))
            before = 4 * width * 2**number
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def mobilenet(classes: int = 1000) -> nn.Sequential:
    """Howard et al. 2017 (version 1): depthwise and pointwise convolutions."""
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5)
    layers: list[nn.Module] = [unit(3, 32, 3, 2)]
    before = 32
    for after, stride in (*plan, (1024, 2), (1024, 1)):
        layers += [unit(before, before, 3, stride, groups=before), unit(before, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, classes))


class DenseLayer(nn.Module):
    """Batch norm, ReLU, 1x1, batch norm, ReLU, 3x3, joined to its input."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.body = nn.Sequential(
            nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, inner, 1, bias=False),
            nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Input and new features side by side."""
        return torch.cat([x, self.body(x)], dim=1)


def densenet(
    counts: tuple[int, ...] = (6, 12, 36, 24), growth: int = 48, classes: int = 1000
) -> nn.Sequential:
    """Huang et al. 2017; the defaults are DenseNet-161."""
    width = 2 * growth
    layers: list[nn.Module] = [unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for number, count in enumerate(counts):
        for _ in range(count):
            layers.append(DenseLayer(width, growth))
            width += growth
        if number + 1 < len(counts):
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1)]
            layers.append(nn.AvgPool2d(2))
            width //= 2
    head = [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(width, classes))


class Inception(nn.Module):
    """Four branches side by side: Szegedy et al. 2015."""

    def __init__(self, before: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pool = widths
        self.branches = nn.ModuleList(
            [
                self._conv(before, one, 1),
                nn.Sequential(self._conv(before, reduce3, 1), self._conv(reduce3, three, 3)),
                nn.Sequential(self._conv(before, reduce5, 1), self._conv(reduce5, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), self._conv(before, pool, 1)),
            ]
        )

    @staticmethod
    def _conv(before: int, after: int, kernel: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(before, after, kernel, padding=kernel // 2), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels of all branches."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def googlenet(classes: int = 1000) -> nn.Sequential:
    """Inception version 1, without the auxiliary heads."""
    conv = Inception._conv
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), conv(64, 64, 1),
        conv(64, 192, 3), nn.MaxPool2d(3, 2, 1),
        Inception(192, (64, 96, 128, 16, 32, 32)), Inception(256, (128, 128, 192, 32, 96, 64)),
        nn.MaxPool2d(3, 2, 1),
        Inception(480, (192, 96, 208, 16, 48, 64)), Inception(512, (160, 112, 224, 24, 64, 64)),
        Inception(512, (128, 128, 256, 24, 64, 64)),
        Inception(512, (112, 144, 288, 32, 64, 64)),
        Inception(528, (256, 160, 320, 32, 128, 128)), nn.MaxPool2d(3, 2, 1),
        Inception(832, (256, 160, 320, 32, 128, 128)),
        Inception(832, (384, 192, 384, 48, 128, 128)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, classes),
    )  # fmt: skip
