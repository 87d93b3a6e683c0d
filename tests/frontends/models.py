"""Small models for the capture tests: a function that makes model, batch and loss for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, Any, Callable[..., Any] | None]


class Lambda(nn.Module):
    """Two linear layers, a matrix and two buffers, with `body(self, *inputs)` as its forward."""

    def __init__(self, body: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.lin = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("one", torch.ones(4))
        self.register_buffer("two", torch.full((4,), 2.0))
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Any) -> Any:
        """Run the body."""
        return self.body(self, *inputs)


def rows() -> torch.Tensor:
    """A fixed batch of three rows."""
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def mlp() -> Made:
    """A multilayer perceptron with dropout and a target in the batch."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))

    def loss(out: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
        return (out - batch[0][:, :3]).square().mean()

    return model, (torch.randn(6, 8),), loss


def cnn() -> Made:
    """Convolutions, batch norm in training mode, in-place ReLU and pooling."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return model, (torch.randn(4, 3, 12, 12),), lambda out: F.cross_entropy(out, torch.arange(4))


class Gpt(nn.Module):
    """A causal transformer with dropout and a head tied to the embedding."""

    def __init__(self, vocab: int = 40, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.position = nn.Parameter(torch.randn(10, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 32, dropout=0.1, batch_first=True, norm_first=True, activation="gelu"
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits = self.head(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def gpt() -> Made:
    """The transformer with keyword inputs, one tensor given twice, its own loss."""
    ids = torch.randint(0, 40, (2, 7))
    return Gpt(), {"ids": ids, "labels": ids}, None


def inplace() -> Made:
    """In-place writes through views, into activations and into a buffer."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x)
        before = h.exp()
        copy = h.clone()
        left, right = copy[:, :2], copy[:, 2:]
        left.mul_(0.5)
        right[:, ::2] = left[:, ::2] * 3
        square = self.weight @ self.weight.t()
        square.diagonal().add_(1.5)
        square.masked_fill_(torch.ones(4, 4, dtype=torch.bool).triu(2), -1.0)
        self.one.add_(h.detach().mean(0))
        return (torch.cat([left, right], 1) @ square + before) * self.one

    return Lambda(body), (rows().requires_grad_(),), lambda out: out.sin().sum()


def autocast() -> Made:
    """A bfloat16 region with a float32 island."""

    def body(self: Any, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.tanh(self.lin(x))
            with torch.autocast("cpu", enabled=False):
                h = F.layer_norm(h.float(), (4,))
            return h @ self.weight

    return Lambda(body), (rows(),), lambda out: out.float().square().mean()


class UNet(nn.Module):
    """Long skips, pooling with indices, transposed convolution."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One level down and up."""
        first = F.relu(self.down1(x))
        pooled, where = F.max_pool2d(first, 2, return_indices=True)
        second = F.relu(self.down2(pooled))
        back = F.max_unpool2d(self.up(F.avg_pool2d(second, 2)), where, [2, 2])
        out: torch.Tensor = self.out(torch.cat([back, first], 1))
        return out


def unet() -> Made:
    """The U-Net on one small image."""
    return UNet(), torch.randn(2, 1, 8, 8), lambda out: out.square().mean()


def channels_last() -> Made:
    """Weights and input in channels-last layout."""
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, (x,), lambda out: out.square().sum()


def frozen() -> Made:
    """A frozen layer between trained ones, and an input that wants a gradient."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    model[1].requires_grad_(False)
    return model, (rows().requires_grad_(),), lambda out: out.sum()


def teacher() -> Made:
    """A teacher under no_grad that moves towards the student in each step."""

    def body(self: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            target = x @ self.teacher.t()
        difference = self.lin(x) - target
        with torch.no_grad():
            self.teacher.mul_(0.9).add_(self.lin.weight, alpha=0.1)
        return difference - difference.detach().mean()

    model = Lambda(body)
    model.register_buffer("teacher", torch.randn(4, 4))
    return model, (rows(),), lambda out: out.square().mean()


class Straight(torch.autograd.Function):
    """Rounding with a backward that is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Round, and keep the input."""
        ctx.save_for_backward(x)
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Let the gradient through where the input is small."""
        (x,) = ctx.saved_tensors
        scaled: torch.Tensor = grad * (x.abs() < 1.5) * 0.3
        return scaled


def round_straight(x: torch.Tensor) -> torch.Tensor:
    """Round with the backward above."""
    out: torch.Tensor = Straight.apply(x)  # type: ignore[no-untyped-call]
    return out


def custom_function() -> Made:
    """A custom autograd function whose own backward must be what runs."""
    model = Lambda(lambda self, x: round_straight(self.lin(x)) @ self.weight)
    return model, (rows(),), lambda out: out.square().mean()


def checkpointed() -> Made:
    """A model that already calls torch.utils.checkpoint, nested, with dropout inside."""
    from torch.utils.checkpoint import checkpoint

    def block(self: Any, x: torch.Tensor) -> Any:
        inner = checkpoint(self.lin, x, use_reentrant=False)
        return F.dropout(torch.tanh(inner), 0.4)

    def body(self: Any, x: torch.Tensor) -> Any:
        x = x + checkpoint(block, self, x, use_reentrant=False)
        return x + checkpoint(block, self, x, use_reentrant=True)

    return Lambda(body), (rows().requires_grad_(),), lambda out: out.square().mean()


def forces() -> Made:
    """A forward that differentiates itself."""

    def body(self: Any, x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = (torch.tanh(self.lin(x)) @ self.weight).sum()
        (grad,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy * 0.1 + grad.square().mean()

    return Lambda(body), (rows(),), None


def penalty() -> Made:
    """A loss that closes over the batch and differentiates the output with respect to it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
    x = rows().requires_grad_()

    def loss(out: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        slope: torch.Tensor = grad.norm(dim=1)
        return out.mean() + (slope - 1).square().mean()

    return model, (x,), loss


@dataclass
class Extra:
    """An output class that pytree does not know."""

    score: torch.Tensor
    name: str


def structured() -> Made:
    """Nested outputs with None, numbers, a dataclass, the input itself, a view and a weight."""

    def body(self: Any, x: torch.Tensor, scale: float, act: Callable[..., Any]) -> Any:
        h = act(self.lin(x)) * scale
        return {
            "loss": h.sum(), "hidden": (h, None, (h.t(), 0.5)), "best": h.argmax(-1),
            "extra": Extra(h.mean().detach(), "s"), "input": x, "part": x[:, :2],
            "weight": self.weight,
        }  # fmt: skip

    return Lambda(body), (rows(), 0.5, torch.tanh), None


def two_losses() -> Made:
    """Two differentiable outputs, each with a tangent of its own."""
    return Lambda(lambda self, x: (self.lin(x).sin(), self.lin(x) @ self.weight)), (rows(),), None


def random_kinds() -> Made:
    """Random operators of several kinds, some of which nobody reads."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x)
        F.dropout(x, 0.5)
        noise = torch.randn_like(x) + torch.rand(3, 4) + torch.randint(0, 3, (3, 4))
        h = h * torch.bernoulli(torch.full((3, 4), 0.5)) + noise * h
        h = F.dropout(h, 0.0) + F.dropout(h, 1.0) + F.rrelu(h, training=True)
        heads = h.view(1, 1, 3, 4)
        attended = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3)
        return attended.sum() + h[torch.randperm(3)].mul(x).sum()

    return Lambda(body), (rows(),), None


def gradient_layouts() -> Made:
    """Gradients that are expanded, transposed, parts of one storage, or equal to a tangent."""

    def body(self: Any, x: torch.Tensor) -> Any:
        first, second = self.weight.split(2)
        parts = (x[:, :2] @ first).sum() + (x[:, 2:] @ second).sum()
        return parts + self.other.sum() + (self.turned.t() @ x.t()).sum() + self.scalar

    model = Lambda(body)
    model.other = nn.Parameter(torch.randn(3, 5))
    model.turned = nn.Parameter(torch.randn(4, 6).t().contiguous().t())
    model.scalar = nn.Parameter(torch.tensor(1.0))
    return model, (rows(),), None


def mutated_input() -> Made:
    """A forward that normalises its input in place after it was read."""

    def body(self: Any, x: torch.Tensor) -> Any:
        gate = torch.sigmoid(x)
        x.sub_(x.mean(0)).mul_(2.0)
        x[:, 0] = 0.0
        return self.lin(torch.tanh(self.lin(x)) * gate)

    return Lambda(body), (rows(),), lambda out: out.square().mean()


def buffers() -> Made:
    """Buffers that are assigned anew, exchanged, and read before and after a change."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.lin(x) * self.two.exp()
        with torch.no_grad():
            old = self.one.clone()
            self.one.copy_(self.two)
            self.two.copy_(old)
        self.count = self.count + 1
        return (h * self.one + self.two).square() * self.count

    model = Lambda(body)
    model.register_buffer("count", torch.tensor(1.0))
    return model, (rows(),), lambda out: out.mean()


def normalised() -> Made:
    """Weight norm, spectral norm and an instance norm with running statistics."""
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    model = nn.Sequential(linear, spectral, nn.Unflatten(0, (1, 3)), _Turn())
    return model, (rows(),), lambda out: out.square().mean()


class _Turn(nn.Module):
    """Instance norm over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise channels."""
        out: torch.Tensor = self.norm(x.transpose(1, 2))
        return out


def degenerate() -> Made:
    """Empty, zero-dimensional and expanded tensors, complex and double numbers."""

    def body(self: Any, x: torch.Tensor, empty: torch.Tensor) -> Any:
        h = torch.cat([self.lin(x), self.lin(empty)])
        big = h.mean().expand(3, 100, 4)
        wave = torch.fft.rfft(h).abs().double()
        turned = torch.view_as_complex(h.view(3, 2, 2)) * torch.polar(torch.ones(2), torch.ones(2))
        inverse = torch.linalg.inv(self.weight @ self.weight.t() + torch.eye(4))
        return (h.unsqueeze(1) * big).sum() + wave.sum() + turned.real.sum() + inverse.sum()

    return Lambda(body), (rows(), torch.zeros(0, 4)), None


def one_module_twice() -> Made:
    """One linear layer and one batch norm, each at several paths."""
    linear, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    model = Lambda(lambda self, x: self.again(self.twice(x)), twice=linear, again=linear)
    block = nn.Sequential(model, norm, nn.ReLU(), norm, model)
    return block, (rows(),), lambda out: out.square().mean()


def resized() -> Made:
    """Every kind of resizing, by fractions and to sizes, with and without antialiasing."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = self.conv(x)
        line, cube = h.flatten(2), h.unflatten(3, (4, 2))
        parts = [F.interpolate(h, scale_factor=2.3, mode=m) for m in ("bilinear", "bicubic")]
        parts += [F.interpolate(h, size=(11, 5), mode=m) for m in ("nearest", "nearest-exact")]
        parts += [F.interpolate(h, (5, 4), mode="bicubic", align_corners=True, antialias=True)]
        parts += [F.interpolate(line, scale_factor=1.7, mode="linear")]
        parts += [F.interpolate(cube, scale_factor=1.7, mode="trilinear")]
        return sum(self.conv(part).square().mean() for part in parts if part.dim() == 4) + sum(
            part.square().mean() for part in parts
        )

    return Lambda(body, conv=nn.Conv2d(3, 3, 3, padding=1)), (torch.randn(2, 3, 9, 8),), None


def margins() -> Made:
    """Shrinkage and margin losses."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = F.hardshrink(self.lin(x), 0.1) + F.softshrink(x @ self.weight, 0.1)
        labels = torch.tensor([[0, 2, -1, 0], [1, -1, 0, 0], [3, 0, 1, -1]])
        single = F.multi_margin_loss(h, torch.tensor([0, 3, 1]), p=2, weight=torch.ones(4) / 3)
        return single + F.multilabel_margin_loss(h, labels)

    return Lambda(body), (rows(),), None


EXACT: tuple[Callable[[], Made], ...] = (
    mlp, cnn, gpt, inplace, autocast, unet, channels_last, frozen, teacher, custom_function,
    checkpointed, forces, penalty, structured, two_losses, random_kinds, gradient_layouts,
    mutated_input, buffers, normalised, degenerate,
    one_module_twice, resized, margins,
)  # fmt: skip
