"""Six training steps of full size, captured on the meta device with roofline times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..models import segmenters
from ..models.steps import kept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import lowtide

Step = tuple[nn.Module, Any]


def gpt2() -> Step:
    """GPT-2: 12 layers, width 768, 4 x 1024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), _text(4, 1024)


def bert() -> Step:
    """BERT-base: 12 layers, width 768, 8 x 512 tokens."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig()), _text(8, 512)


def llama() -> Step:
    """A Llama shape: 16 layers, width 2048, 4 x 2048 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _text(4, 2048)


def resnet50() -> Step:
    """ResNet-50, 64 images of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(_classes(ResNetConfig())), _images(64)


def mobilenetv2() -> Step:
    """MobileNetV2, 64 images of 224 x 224."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(_classes(MobileNetV2Config())), _images(64)


def unet() -> Step:
    """The U-Net of Ronneberger et al. with batch norm, 4 images of 256 x 256."""
    return UNet(), {"x": torch.empty(4, 3, 256, 256)}


MODELS: dict[str, Callable[[], Step]] = {
    "gpt2": gpt2,
    "bert": bert,
    "llama": llama,
    "resnet50": resnet50,
    "unet": unet,
    "mobilenetv2": mobilenetv2,
}


def graph_of(name: str, folder: Path | None = None) -> lowtide.Graph:
    """The step's graph; nothing of its size is allocated. Kept in `folder` for the next time."""

    def make() -> Step:
        with torch.device("meta"):
            model, batch = MODELS[name]()
        return model.train(), batch

    return kept(f"gain-{name}", make, folder)


def _classes(config: Any) -> Any:
    """A thousand classes; the kind of problem is what the first forward would write there."""
    config.num_labels = 1000
    config.problem_type = "single_label_classification"
    return config


def _text(rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(rows, length, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids}


def _images(count: int) -> dict[str, torch.Tensor]:
    pixels = torch.empty(count, 3, 224, 224)
    return {"pixel_values": pixels, "labels": torch.zeros(count, dtype=torch.int64)}


class UNet(segmenters.UNet):
    """With batch norm; gives the mean square of its scores."""

    def __init__(self) -> None:
        super().__init__(norm=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Loss of images (batch, 3, height, width)."""
        return super().forward(x).square().mean()
