"""Small training steps of different kinds: dropout, batch norm, tied weights, views, autocast."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.profile import profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured


@dataclass(frozen=True)
class Case:
    """A model, its loss, and a function that makes batches from a seed."""

    model: nn.Module
    loss_fn: Callable[..., torch.Tensor] | None
    batch: Callable[[int], Any]


class Mlp(nn.Module):
    """Linear layers with dropout and layer norm."""

    def __init__(self, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> Any:
        """Residual blocks."""
        for layer in self.layers:
            x = x + self.drop(F.gelu(layer(self.norm(x))))
        return x


class Cnn(nn.Module):
    """Convolutions with batch norm and in-place activations."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> Any:
        """Two blocks, the second one residual."""
        x = self.act(self.norm1(self.conv1(x)))
        x = self.act(self.norm2(self.conv2(x)) + x)
        x = F.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> Any:
        """Attention and feed-forward, both residual."""
        b, s, d = x.shape
        parts = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, s, d)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """A language model with tied embeddings that computes its own loss."""

    def __init__(self, vocab: int = 29, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("order", torch.arange(8))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        """Cross entropy."""
        x = self.embed(ids) + self.place(self.order)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


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


def square(out: torch.Tensor) -> torch.Tensor:
    """Mean square."""
    return out.square().mean()


def _random(*shape: int) -> Callable[[int], Any]:
    return lambda seed: (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)),)


def _tokens(vocab: int, *shape: int) -> Callable[[int], Any]:
    def batch(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        names = ("ids", "labels")
        return {name: torch.randint(0, vocab, shape, generator=generator) for name in names}

    return batch


def _transformers(name: str) -> Case:
    import transformers

    common: dict[str, Any] = {"vocab_size": 61, "use_cache": False}
    if name == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=2, n_embd=16, n_head=2, n_positions=16, **common
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    elif name == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=16, **common,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.BertConfig(
            num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
            max_position_embeddings=16, vocab_size=61,
        )  # fmt: skip
        model = transformers.BertForMaskedLM(config)

    def batch(seed: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 61, (2, 8), generator=torch.Generator().manual_seed(seed))
        return {"input_ids": ids, "labels": ids}

    return Case(model.train(), None, batch)


_MAKERS: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(Mlp(), square, _random(7, 24)),
    "cnn": lambda: Case(Cnn(), square, _random(3, 3, 8, 8)),
    "gpt": lambda: Case(Gpt(), None, _tokens(29, 3, 8)),
    "unet": lambda: Case(Unet(), square, _random(2, 1, 16, 16)),
    "views": lambda: Case(Views(), lambda out: out.sin().sum(), _random(5, 8)),
    "autocast": lambda: Case(Autocast(), square, _random(6, 16)),
    "gpt2": lambda: _transformers("gpt2"),
    "llama": lambda: _transformers("llama"),
    "bert": lambda: _transformers("bert"),
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
