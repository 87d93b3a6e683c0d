"""Hugging Face models as they are called in training: labels in, loss out, dropout on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.frontends.torch.capture import capture

from .reference import compare

if TYPE_CHECKING:
    from collections.abc import Callable

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


def gpt2(**options: Any) -> torch.nn.Module:
    """A tiny GPT-2 with dropout."""
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0, **options,
    )  # fmt: skip
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model.train()


def llama(**options: Any) -> torch.nn.Module:
    """A tiny Llama with grouped key-value heads."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, **options,
    )  # fmt: skip
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model.train()


def bert() -> torch.nn.Module:
    """A tiny BERT for masked language modelling."""
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    model: torch.nn.Module = transformers.BertForMaskedLM(config)
    return model.train()


CASES: dict[str, tuple[Callable[[], torch.nn.Module], bool]] = {
    "gpt2": (lambda: gpt2(use_cache=False), False),
    "gpt2-cache": (gpt2, False),
    "llama-mask": (lambda: llama(use_cache=False), True),
    "llama-cache": (llama, False),
    "bert": (bert, True),
}


@pytest.mark.parametrize(("make", "masked"), CASES.values(), ids=list(CASES))
def test_training_step_equals_eager(make: Callable[[], torch.nn.Module], masked: bool) -> None:
    """Loss, every other output, gradients and random state are equal to the bit."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make()
    ids = torch.randint(3, 50, (2, 8))
    batch = {"input_ids": ids, "labels": ids}
    if masked:
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][1, 6:] = 0
    captured = capture(model, batch, times="none")
    assert captured.program.outputs[0].differentiable
    assert compare(model, lambda: batch, captured) == []


@pytest.mark.slow
def test_large_gpt2_is_captured_without_memory() -> None:
    """Twelve layers at 4 x 1024 tokens, from a model without data, in under a minute."""
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
        ids = torch.zeros(4, 1024, dtype=torch.long)
    model.train()
    captured = capture(model, {"input_ids": ids, "labels": ids}, times="none", device="cpu")
    assert len(captured.graph.ops) > 800
    assert max(t.size_bytes for t in captured.graph.tensors) > 2**29
