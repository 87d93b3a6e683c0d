"""The training steps of the study: (module that returns the loss, batch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


class _WithLoss(nn.Module):
    """A classifier and its cross entropy."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.body(x), y)


class _Block(nn.Module):
    """Two convolutions with batch norm around a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(y)))


def mlp() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Eight layers of 512 units with dropout, batch 256."""
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1)]
    body = nn.Sequential(*layers, nn.Linear(512, 10))
    return _WithLoss(body), (torch.rand(256, 512), torch.randint(0, 10, (256,)))


def cnn() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Six residual blocks of 32 channels on 32x32 images, batch 16."""
    body = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        *[_Block(32) for _ in range(3)],
        nn.MaxPool2d(2),
        *[_Block(32) for _ in range(3)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return _WithLoss(body), (torch.rand(16, 3, 32, 32), torch.randint(0, 10, (16,)))


def encoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Four layers of PyTorch's transformer encoder of 128, 8 sequences of 64."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    body = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 128, 10))
    return _WithLoss(body), (torch.rand(8, 64, 128), torch.randint(0, 10, (8,)))


def vgg() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Convolutions and pooling, 16 to 64 channels on 32x32 images, batch 16."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))
    return _WithLoss(body), (torch.rand(16, 3, 32, 32), torch.randint(0, 10, (16,)))


class LanguageModel(nn.Module):
    """A Hugging Face language model that returns its loss only.

    Parameters
    ----------
    body
        The model.
    options
        Further arguments of its forward.
    """

    def __init__(self, body: nn.Module, **options: Any) -> None:
        super().__init__()
        self.body, self.options = body, options

    def forward(self, ids: torch.Tensor) -> Any:
        """Loss of tokens (batch, length)."""
        return self.body(input_ids=ids, labels=ids, **self.options).loss


def _gpt2(layers: int, width: int, vocabulary: int, length: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        vocab_size=vocabulary,
        n_positions=max(128, length),
    )
    ids = torch.randint(0, vocabulary, (1, length))
    return LanguageModel(GPT2LMHeadModel(config), use_cache=False), (ids,)


def gpt2_tiny() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """GPT-2 with 4 layers of 256, vocabulary 5000, 128 tokens."""
    made: tuple[nn.Module, tuple[torch.Tensor, ...]] = _gpt2(4, 256, 5000, 128)
    return made


def gpt2_small() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """GPT-2 small: 12 layers of 768, vocabulary 50257, 128 tokens."""
    made: tuple[nn.Module, tuple[torch.Tensor, ...]] = _gpt2(12, 768, 50257, 128)
    return made


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "vgg": vgg,
    "encoder": encoder,
    "gpt2-tiny": gpt2_tiny,
    "gpt2-small": gpt2_small,
}
