"""Small training steps, large enough that activations are most of their memory.

Each returns a module whose forward gives the loss, and the arguments of it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

Step = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Mlp(nn.Module):
    """Linear layers with GELU."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean square of the result."""
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x.pow(2).mean()


class Block(nn.Module):
    """Attention and a feed-forward part, normalised before (GPT) or after (BERT)."""

    def __init__(self, width: int, heads: int, *, first: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.first, self.causal = heads, first, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Self-attention."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """Two linear layers with GELU between them."""
        out: torch.Tensor = self.down(F.gelu(self.up(x)))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        if self.first:
            x = x + self.attend(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        out: torch.Tensor = self.norm2(x + self.feed(x))
        return out


class Transformer(nn.Module):
    """Token embedding, blocks, a head over the vocabulary."""

    def __init__(self, layers: int, width: int, vocabulary: int, *, first: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(width, 4, first=first, causal=first) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Cross entropy with the tokens themselves."""
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


class Cnn(nn.Module):
    """Convolutions with batch norm and ReLU."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        sizes = [3, *[channels] * depth]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(depth))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean square of the scores."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        scores: torch.Tensor = self.head(x.mean((2, 3)))
        return scores.pow(2).mean()


def mlp() -> Step:
    """Eight layers."""
    return Mlp(128, 8), (torch.randn(1024, 128),)


def gpt() -> Step:
    """Three blocks, normalised before."""
    return Transformer(3, 128, 256, first=True), (torch.randint(0, 256, (8, 128)),)


def bert() -> Step:
    """Three blocks, normalised after."""
    return Transformer(3, 128, 256, first=False), (torch.randint(0, 256, (8, 128)),)


def cnn() -> Step:
    """Six convolutions."""
    return Cnn(16, 6), (torch.randn(8, 3, 32, 32),)


MODELS: dict[str, Callable[[], Step]] = {"mlp": mlp, "gpt": gpt, "bert": bert, "cnn": cnn}
