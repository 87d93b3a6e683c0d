"""The two models: a small GPT with dropout and a tied head, and a residual CNN with batch norm."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A pre-norm transformer block; `attention_dropout` is of the attention's probabilities."""

    def __init__(
        self, width: int, heads: int, dropout: float, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.attention_dropout = heads, attention_dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        dropped = self.attention_dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        y: torch.Tensor = x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))
        return y


class Gpt(nn.Module):
    """Predicts the next byte; returns the loss."""

    def __init__(
        self,
        layers: int = 8,
        width: int = 128,
        heads: int = 4,
        length: int = 128,
        *,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, dropout, attention_dropout) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Loss of text (batch, length + 1) of byte values."""
        x = self.embed(text[:, :-1]) + self.place
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width, side, side) to the same."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(y)))


class Cnn(nn.Module):
    """Tells letters apart; returns the loss."""

    def __init__(self, layers: int = 8, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(layers))
        self.head = nn.Linear(width, 26)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of images (batch, 1, 32, 32) with labels (batch,)."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)
