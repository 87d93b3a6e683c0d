"""The training steps of the study, and what a checkpoint per block would wrap in each.

Every model is called with tensors and returns its loss alone; about 1,000 tokens or 32 images, so
that activations are most of the memory and a step takes some tenths of a second on one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..demo.models import Block, Gpt
from ..models.classifiers import RESNET, Bottleneck, resnet
from ..models.segmenters import UNet
from ..models.steps import WithLoss
from ..profile_quality.models import LanguageModel

if TYPE_CHECKING:
    from collections.abc import Callable

Step = tuple[nn.Module, tuple[torch.Tensor, ...]]
VOCABULARY, LENGTH, WIDTH, HEADS = 1000, 128, 128, 4


@dataclass(frozen=True)
class Subject:
    """A training step.

    Attributes
    ----------
    title
        As tables name it.
    make
        The model in training mode and its arguments, the same each time.
    block
        Name of the class whose instances a checkpoint per block wraps.
    """

    title: str
    make: Callable[[], Step]
    block: str

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The modules to checkpoint: outermost instances of `block`."""
        found: list[nn.Module] = []
        inside: set[nn.Module] = set()
        for module in model.modules():
            if type(module).__name__ == self.block and module not in inside:
                found.append(module)
                inside.update(module.modules())
        return found


class Span(nn.Module):
    """An LSTM cell over several frames; its products are written out.

    (PyTorch's own cell adds to its products in place, which selective checkpoints refuse.)
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.read, self.repeat = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden)

    def forward(
        self, frames: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both states after frames (length, batch, inputs)."""
        for frame in frames:
            i, f, g, o = (self.read(frame) + self.repeat(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class Recurrent(nn.Module):
    """An LSTM over a sequence that is cut into spans, as checkpoints over time need it."""

    def __init__(self, inputs: int, hidden: int, classes: int, span: int) -> None:
        super().__init__()
        self.span, self.hidden, self.cut = Span(inputs, hidden), hidden, span
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of sequences (length, batch, inputs) with one label each (batch,)."""
        h = c = x.new_zeros(x.shape[1], self.hidden)
        for frames in torch.split(x, self.cut):
            h, c = self.span(frames, h, c)
        return nn.functional.cross_entropy(self.head(h), labels)


def gpt(layers: int = 12, length: int = LENGTH) -> Step:
    """GPT without dropout, width 128, 8 x 128 tokens."""
    model = Gpt(layers, WIDTH, HEADS, length, dropout=0.0)
    return model, (torch.randint(0, 256, (8, length + 1)),)


def gpt_dropout() -> Step:
    """The same with dropout, of the attention's probabilities too."""
    model = Gpt(12, WIDTH, HEADS, LENGTH, dropout=0.1, attention_dropout=0.1)
    return model, (torch.randint(0, 256, (8, LENGTH + 1)),)


def gpt2() -> Step:
    """Hugging Face GPT-2, 12 layers, its own dropout, 10 x 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=12, n_embd=WIDTH, n_head=HEADS, n_positions=LENGTH, vocab_size=VOCABULARY,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return LanguageModel(GPT2LMHeadModel(config), use_cache=False), _ids(10)


def llama(layers: int = 12) -> Step:
    """Hugging Face Llama, 8 x 128 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=WIDTH, intermediate_size=352,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    return LanguageModel(LlamaForCausalLM(config), use_cache=False), _ids(8)


def bert() -> Step:
    """Hugging Face BERT, 12 layers, its own dropout, 10 x 128 tokens."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=12, hidden_size=WIDTH, intermediate_size=4 * WIDTH,
        num_attention_heads=HEADS, vocab_size=VOCABULARY, max_position_embeddings=LENGTH,
    )  # fmt: skip
    return LanguageModel(BertForMaskedLM(config)), _ids(10)


def resnet50() -> Step:
    """ResNet-50 with 25.6 million parameters, 32 images of 64 x 64."""
    model = WithLoss(resnet(RESNET[50]))
    return model, (torch.randn(32, 3, 64, 64), torch.randint(0, 1000, (32,)))


def unet() -> Step:
    """U-Net with batch norm, 16 channels at first, 4 images of 128 x 128."""
    model = WithLoss(UNet(width=16, norm=True))
    return model, (torch.randn(4, 3, 128, 128), torch.randint(0, 2, (4, 128, 128)))


def lstm() -> Step:
    """An LSTM of 128 units over 64 frames, 64 sequences, spans of 8 frames."""
    model = Recurrent(64, 128, 10, 8)
    return model, (torch.randn(64, 64, 64), torch.randint(0, 10, (64,)))


def _ids(rows: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, VOCABULARY, (rows, LENGTH)),)


def _seeded(make: Callable[[], Any]) -> Callable[[], Step]:
    def made() -> Step:
        torch.manual_seed(0)
        model, batch = make()
        return model.train(), batch

    return made


MODELS: dict[str, Subject] = {
    "gpt": Subject("GPT, 12 layers", _seeded(gpt), Block.__name__),
    "gpt_dropout": Subject("the same with dropout", _seeded(gpt_dropout), Block.__name__),
    "gpt2": Subject("Hugging Face GPT-2", _seeded(gpt2), "GPT2Block"),
    "llama": Subject("Hugging Face Llama", _seeded(llama), "LlamaDecoderLayer"),
    "bert": Subject("Hugging Face BERT", _seeded(bert), "BertLayer"),
    "resnet50": Subject("ResNet-50", _seeded(resnet50), Bottleneck.__name__),
    "unet": Subject("U-Net", _seeded(unet), "Sequential"),
    "lstm": Subject("LSTM, 64 steps", _seeded(lstm), Span.__name__),
    "llama32": Subject("Llama, 32 layers", _seeded(lambda: llama(32)), "LlamaDecoderLayer"),
}
