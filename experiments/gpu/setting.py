"""Where the study runs, how large, and until when; and its models."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from tests.models import Case, make

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Setting:
    """One run of the study; `deadline` is of the monotonic clock."""

    device: torch.device
    small: bool
    deadline: float

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    def case(self, name: str) -> Case:
        """A model of the zoo on the device."""
        case = make(name)

        def batch(seed: int) -> Any:
            return self.moved(case.batch(seed))

        return Case(case.model.to(self.device), case.loss_fn, batch)

    def moved(self, batch: Any) -> Any:
        """A batch on the device."""
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(self.device), batch)


def gpt2(setting: Setting) -> tuple[nn.Module, Any]:
    """GPT-2 small with 8 x 1024 tokens."""
    import transformers

    kind: Any = transformers.GPT2Config
    shape, config = (8, 1024), kind(use_cache=False)
    if setting.small:
        shape = (2, 32)
        config = kind(
            n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=99, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    torch.manual_seed(0)
    ids = torch.randint(0, config.vocab_size, shape)
    model: nn.Module = transformers.GPT2LMHeadModel(config).train()
    return model.to(setting.device), setting.moved({"input_ids": ids, "labels": ids})


def resnet50(setting: Setting) -> tuple[nn.Module, Any]:
    """ResNet-50 with 128 images of 224 x 224."""
    import transformers

    kind: Any = transformers.ResNetConfig
    rows, side, config = 128, 224, kind(num_labels=1000)
    if setting.small:
        rows, side = 2, 32
        config = kind(num_labels=10, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    config.problem_type = "single_label_classification"  # else the first call would set it
    torch.manual_seed(0)
    model: nn.Module = transformers.ResNetForImageClassification(config).train()
    labels = torch.randint(0, config.num_labels, (rows,))
    batch = {"pixel_values": torch.randn(rows, 3, side, side), "labels": labels}
    return model.to(setting.device), setting.moved(batch)
