"""Training steps that tests and experiments share: seven models of seven kinds, in any size.

In the zoo, activations outweigh parameters, so that budgets far below the peak can be met.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["gpt2", "llama", "bert"]


@dataclass(frozen=True)
class Case:
    """A model, its loss, and a function that makes batches from a seed."""

    model: nn.Module
    loss_fn: Callable[..., torch.Tensor] | None
    batch: Callable[[int], Any]


class Mlp(nn.Module):
    """Residual linear layers with dropout and layer norm."""

    def __init__(self, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual blocks."""
        for layer in self.layers:
            x = x + self.drop(F.gelu(layer(self.norm(x))))
        return x


class Residual(nn.Module):
    """Two convolutions with batch norm and in-place activations around a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block."""
        out: torch.Tensor = self.act(self.norm1(self.conv1(x)))
        out = self.act(self.norm2(self.conv2(out)) + x)
        return out


class Cnn(nn.Module):
    """A residual network with batch norm; max pooling after the first half of the blocks."""

    def __init__(self, width: int = 6, blocks: int = 2) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.first = nn.Sequential(*[Residual(width) for _ in range(blocks // 2)])
        self.second = nn.Sequential(*[Residual(width) for _ in range(blocks - blocks // 2)])
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.first(F.relu(self.norm(self.stem(x))))
        out: torch.Tensor = self.head(self.second(F.max_pool2d(x, 2)).mean((2, 3)))
        return out


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and feed-forward, both residual."""
        b, s, d = x.shape
        parts = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, s, d)))
        x = x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))
        return x


class Gpt(nn.Module):
    """A language model with tied embeddings that computes its own loss."""

    def __init__(self, vocab: int = 29, width: int = 16, depth: int = 2, length: int = 8) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("order", torch.arange(length))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross entropy."""
        x = self.embed(ids) + self.place(self.order)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Twice(nn.Sequential):
    """Two convolutions with batch norm."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
        )  # fmt: skip


class Unet(nn.Module):
    """Down by pooling, up by transposed convolution, with a long skip at every level."""

    def __init__(self, width: int = 4, levels: int = 3) -> None:
        super().__init__()
        wide = [width * 2**level for level in range(levels)]
        self.downs = nn.ModuleList(Twice(b, a) for b, a in zip([1, *wide], wide[:-1], strict=False))
        self.middle = Twice(wide[-2], wide[-1])
        pairs = list(zip(wide[1:], wide[:-1], strict=True))[::-1]
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for b, a in pairs)
        self.merges = nn.ModuleList(Twice(2 * a, a) for _, a in pairs)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Down, up, and across."""
        skips = []
        for down in self.downs:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for up, merge in zip(self.ups, self.merges, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        x = self.head(x)
        return x


def square(out: torch.Tensor) -> torch.Tensor:
    """Mean square."""
    return out.square().mean()


def noise(*shape: int) -> Callable[[int], Any]:
    """Batches of one tensor of that shape."""
    return lambda seed: (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)),)


def tokens(vocab: int, *shape: int) -> Callable[[int], Any]:
    """Batches of token numbers and labels."""

    def batch(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        names = ("ids", "labels")
        return {name: torch.randint(0, vocab, shape, generator=generator) for name in names}

    return batch


def transformer(
    kind: Kind, *, depth: int, width: int, rows: int, length: int, vocab: int = 61
) -> Case:
    """A Hugging Face language model with random weights.

    Batches have labels; those of BERT are padded, with a mask.
    """
    import transformers

    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=depth, n_embd=width, n_head=2, n_positions=length, vocab_size=vocab,
            bos_token_id=0, eos_token_id=0, use_cache=False,
        )  # fmt: skip
        model: Any = transformers.GPT2LMHeadModel(config)
    elif kind == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=depth, hidden_size=width, intermediate_size=2 * width,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=length,
            vocab_size=vocab, use_cache=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.BertConfig(
            num_hidden_layers=depth, hidden_size=width, intermediate_size=2 * width,
            num_attention_heads=2, max_position_embeddings=length, vocab_size=vocab,
        )  # fmt: skip
        model = transformers.BertForMaskedLM(config)

    def batch(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, vocab, (rows, length), generator=generator)
        if kind != "bert":
            return {"input_ids": ids, "labels": ids}
        lengths = torch.randint(length // 2, length, (rows, 1), generator=generator)
        mask = torch.arange(length) < lengths
        return {
            "input_ids": ids, "labels": ids.masked_fill(~mask, -100), "attention_mask": mask.long()
        }  # fmt: skip

    return Case(model.train(), None, batch)


_ZOO: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(Mlp(48, 12), square, noise(384, 48)),
    "cnn": lambda: Case(Cnn(12, 6), square, noise(4, 3, 24, 24)),
    "gpt": lambda: Case(Gpt(53, 48, 4, 64), None, tokens(53, 8, 64)),
    "gpt2": lambda: transformer("gpt2", depth=4, width=48, rows=8, length=64),
    "llama": lambda: transformer("llama", depth=4, width=48, rows=8, length=64),
    "bert": lambda: transformer("bert", depth=4, width=48, rows=8, length=64),
    "unet": lambda: Case(Unet(6, 4), square, noise(4, 1, 32, 32)),
}
ZOO = tuple(_ZOO)


def make(name: str, *, seeded: bool = True) -> Case:
    """A fresh case of the zoo: the same each time, or by the state of the random generator."""
    if seeded:
        torch.manual_seed(len(name))
    return _ZOO[name]()
