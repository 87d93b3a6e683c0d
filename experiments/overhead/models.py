"""The training steps of the study: tiny tensors, where Python counts, to large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

_Made = tuple[nn.Module, Any, Any]


def _mlp(depth: int, width: int, rows: int, dropout: float = 0.1) -> _Made:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers), torch.randn(rows, width), _square


def _cnn(depth: int, width: int, rows: int, side: int) -> _Made:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(rows, 3, side, side), _square


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> Any:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, s, d)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


class _Gpt(nn.Module):
    def __init__(self, depth: int, width: int, vocab: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*[_Block(width, 4, dropout) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.embed(ids))))
        return functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def _gpt(depth: int, width: int, rows: int, length: int, dropout: float = 0.1) -> _Made:
    vocab = 1000
    return _Gpt(depth, width, vocab, dropout), torch.randint(0, vocab, (rows, length)), None


def _transformer(kind: str, depth: int, width: int, rows: int, length: int) -> _Made:
    import transformers

    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=depth, n_embd=width, n_head=4, n_positions=length, vocab_size=1000
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=depth, hidden_size=width, intermediate_size=3 * width,
            num_attention_heads=4, num_key_value_heads=4, vocab_size=1000,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 1000, (rows, length))
    return model.train(), {"input_ids": ids, "labels": ids, "use_cache": False}, None


def _square(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


MODELS: dict[str, Callable[[], _Made]] = {
    "mlp-tiny": lambda: _mlp(20, 32, 8),
    "gpt-tiny": lambda: _gpt(4, 32, 1, 16),
    "gpt2-tiny": lambda: _transformer("gpt2", 4, 32, 1, 16),
    "llama-tiny": lambda: _transformer("llama", 4, 32, 1, 16),
    "cnn-tiny": lambda: _cnn(8, 4, 2, 8),
    "mlp-large": lambda: _mlp(8, 512, 256),
    "mlp-nodrop": lambda: _mlp(8, 512, 256, 0.0),
    "cnn-large": lambda: _cnn(6, 32, 8, 32),
    "gpt-large": lambda: _gpt(2, 256, 4, 128),
    "gpt-nodrop": lambda: _gpt(2, 256, 4, 128, 0.0),
    "gpt2-large": lambda: _transformer("gpt2", 2, 256, 4, 128),
    "llama-large": lambda: _transformer("llama", 2, 256, 4, 128),
    # More than 50 ms a step.
    "cnn-long": lambda: _cnn(6, 64, 8, 32),
    "gpt-long": lambda: _gpt(6, 256, 8, 128),
    "llama-long": lambda: _transformer("llama", 6, 256, 8, 128),
}
