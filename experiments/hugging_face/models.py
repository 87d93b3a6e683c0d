"""Models of Hugging Face transformers, built small from their configurations, with random weights.

Nothing is downloaded. Every model computes its own training loss in training mode, dropout on where
the model has it; batches of text are padded and masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

VOCABULARY, ROWS, LENGTH = 61, 2, 16
WIDTH, HEADS, DEPTH = 32, 4, 2
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 2 * LENGTH,
}
_SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": DEPTH,
    "decoder_layers": DEPTH,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_position_embeddings": 2 * LENGTH,
    "decoder_start_token_id": 1,
    **_SPECIAL,
}
# or the first forward sets it
_CLASSES = {"problem_type": "single_label_classification"}
_IMAGE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "image_size": 32,
    "patch_size": 8,
}
_SOUND: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": VOCABULARY,
}


@dataclass(frozen=True)
class Entry:
    """One model of the table.

    Attributes
    ----------
    family
        Kind of model.
    config, model
        Names of the classes in `transformers`.
    options
        Arguments of the configuration.
    batch
        Makes a batch from a seed.
    refusal
        Part of the message with which the model is refused; empty if it is captured.
    warm
        Whether to run it once before: it sets attributes of its own in the first forward.
    """

    family: str
    config: str
    model: str
    options: dict[str, Any]
    batch: Callable[[int], dict[str, Any]]
    refusal: str = ""
    warm: bool = False

    def make(self) -> nn.Module:
        """The model in training mode, the same each time."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.options)
        model: nn.Module = getattr(transformers, self.model)(config)
        if self.warm:
            with torch.no_grad():
                model.eval()(**self.batch(0))
        return model.train()


def _ids(seed: int, rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, length), generator=generator)


def text(seed: int) -> dict[str, Any]:
    """Tokens, the last row padded, with a mask and labels."""
    ids = _ids(seed)
    mask = torch.ones_like(ids)
    mask[-1, LENGTH - 4 :] = 0
    ids = ids.masked_fill(mask == 0, 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def full(seed: int) -> dict[str, Any]:
    """Tokens with a mask of ones."""
    ids = _ids(seed)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def bare(seed: int) -> dict[str, Any]:
    """Tokens without a mask."""
    ids = _ids(seed)
    return {"input_ids": ids, "labels": ids}


def classes(seed: int) -> dict[str, Any]:
    """Padded tokens and a class for each row."""
    return {**text(seed), "labels": torch.tensor([0, 1])}


def pairs(seed: int) -> dict[str, Any]:
    """Padded tokens and the tokens to translate them to."""
    return {**text(seed), "labels": _ids(seed + 1000, length=LENGTH // 2)}


def images(seed: int) -> dict[str, Any]:
    """Pictures of 32 x 32 and their classes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "pixel_values": torch.randn(ROWS, 3, 32, 32, generator=generator),
        "labels": torch.tensor([0, 1]),
    }


def captions(seed: int) -> dict[str, Any]:
    """Pictures with texts that belong to them."""
    batch = {**text(seed), **images(seed), "return_loss": True}
    del batch["labels"]
    return batch


def sounds(seed: int) -> dict[str, Any]:
    """Waves and a class for each."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_values": torch.randn(ROWS, 800, generator=generator),
        "labels": torch.tensor([0, 1]),
    }


def spoken(seed: int) -> dict[str, Any]:
    """Waves and the tokens that were spoken."""
    return {**sounds(seed), "labels": _ids(seed, length=4)}


def spectra(seed: int) -> dict[str, Any]:
    """Spectrograms and the tokens that were spoken."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_features": torch.randn(ROWS, 16, 2 * LENGTH, generator=generator),
        "labels": _ids(seed, length=LENGTH // 2),
    }


def _text(**options: Any) -> dict[str, Any]:
    return {**_TEXT, **_SPECIAL, **options}


MODELS: dict[str, Entry] = {
    # encoders
    "bert": Entry("encoder", "BertConfig", "BertForMaskedLM", _text(), text),
    "roberta": Entry(
        "encoder", "RobertaConfig", "RobertaForSequenceClassification", _text(**_CLASSES), classes
    ),
    "distilbert": Entry(
        "encoder", "DistilBertConfig", "DistilBertForMaskedLM",
        {"vocab_size": VOCABULARY, "dim": WIDTH, "hidden_dim": 2 * WIDTH, "n_layers": DEPTH,
         "n_heads": HEADS, "max_position_embeddings": 2 * LENGTH, "pad_token_id": 0}, text,
    ),
    "electra": Entry(
        "encoder", "ElectraConfig", "ElectraForMaskedLM", _text(embedding_size=16), text
    ),
    "electra-pretraining": Entry(
        "encoder", "ElectraConfig", "ElectraForPreTraining", _text(embedding_size=16),
        lambda seed: {**text(seed), "labels": (_ids(seed + 9) > 30).long()},
        refusal="active_logits = logits.view",
    ),
    "albert": Entry("encoder", "AlbertConfig", "AlbertForMaskedLM", _text(embedding_size=16), text),
    "deberta-v2": Entry(
        "encoder", "DebertaV2Config", "DebertaV2ForMaskedLM",
        _text(relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
              norm_rel_ebd="layer_norm", share_att_key=True), text,
    ),
    "modernbert": Entry(
        "encoder", "ModernBertConfig", "ModernBertForMaskedLM",
        _text(cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2), text,
    ),
    # decoders
    "gpt2": Entry(
        "decoder", "GPT2Config", "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": DEPTH,
         "n_head": HEADS, **_SPECIAL}, text,
    ),
    "gpt-neox": Entry("decoder", "GPTNeoXConfig", "GPTNeoXForCausalLM", _text(), text),
    "gptj": Entry(
        "decoder", "GPTJConfig", "GPTJForCausalLM",
        {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": WIDTH, "n_layer": DEPTH,
         "n_head": HEADS, "rotary_dim": 4, **_SPECIAL}, text,
    ),
    "opt": Entry(
        "decoder", "OPTConfig", "OPTForCausalLM",
        {**_text(), "ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH}, text,
    ),
    "bloom": Entry(
        "decoder", "BloomConfig", "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": DEPTH, "n_head": HEADS,
         **_SPECIAL}, text,
    ),
    "llama": Entry(
        "decoder", "LlamaConfig", "LlamaForCausalLM", _text(num_key_value_heads=2), full
    ),
    "mistral": Entry(
        "decoder", "MistralConfig", "MistralForCausalLM",
        _text(num_key_value_heads=2, sliding_window=8), text,
    ),
    "qwen2": Entry(
        "decoder", "Qwen2Config", "Qwen2ForCausalLM", _text(num_key_value_heads=2), bare
    ),
    "qwen3": Entry(
        "decoder", "Qwen3Config", "Qwen3ForCausalLM", _text(num_key_value_heads=2, head_dim=8),
        text,
    ),
    "gemma": Entry(
        "decoder", "GemmaConfig", "GemmaForCausalLM", _text(num_key_value_heads=1, head_dim=8),
        text,
    ),
    "gemma2": Entry(
        "decoder", "Gemma2Config", "Gemma2ForCausalLM",
        _text(num_key_value_heads=2, head_dim=8, sliding_window=8), text,
    ),
    "phi": Entry("decoder", "PhiConfig", "PhiForCausalLM", _text(), text),
    "falcon": Entry("decoder", "FalconConfig", "FalconForCausalLM", _text(), text),
    # encoder and decoder
    "t5": Entry(
        "encoder-decoder", "T5Config", "T5ForConditionalGeneration",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 2 * WIDTH,
         "num_layers": DEPTH, "num_heads": HEADS, "decoder_start_token_id": 0, **_SPECIAL}, pairs,
    ),
    "bart": Entry(
        "encoder-decoder", "BartConfig", "BartForConditionalGeneration",
        {**_SEQ2SEQ, "encoder_layerdrop": 0.0}, pairs,
    ),
    "pegasus": Entry(
        "encoder-decoder", "PegasusConfig", "PegasusForConditionalGeneration", _SEQ2SEQ, pairs
    ),
    "marian": Entry("encoder-decoder", "MarianConfig", "MarianMTModel", _SEQ2SEQ, pairs),
    # vision
    "vit": Entry(
        "vision", "ViTConfig", "ViTForImageClassification", {**_IMAGE, **_CLASSES}, images
    ),
    "swin": Entry(
        "vision", "SwinConfig", "SwinForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2],
         "num_heads": [2, 4], "window_size": 4, "drop_path_rate": 0.1, **_CLASSES},
        images, warm=True,
    ),
    "convnext": Entry(
        "vision", "ConvNextConfig", "ConvNextForImageClassification",
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2, "drop_path_rate": 0.1,
         **_CLASSES}, images,
    ),
    "resnet": Entry(
        "vision", "ResNetConfig", "ResNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], **_CLASSES}, images,
    ),
    "clip": Entry(
        "vision", "CLIPConfig", "CLIPModel",
        {"text_config": _text(), "vision_config": _IMAGE, "projection_dim": 16}, captions,
    ),
    # audio
    "wav2vec2": Entry(
        "audio", "Wav2Vec2Config", "Wav2Vec2ForSequenceClassification",
        {**_SOUND, "layerdrop": 0.0, "apply_spec_augment": False}, sounds,
    ),
    "hubert": Entry(
        "audio", "HubertConfig", "HubertForSequenceClassification",
        {**_SOUND, "layerdrop": 0.0, "apply_spec_augment": False}, sounds,
    ),
    "hubert-ctc": Entry(
        "audio", "HubertConfig", "HubertForCTC",
        {**_SOUND, "layerdrop": 0.0, "apply_spec_augment": False}, spoken,
        refusal="labels.masked_select",
    ),
    "wav2vec2-layerdrop": Entry(
        "audio", "Wav2Vec2Config", "Wav2Vec2ForSequenceClassification",
        {**_SOUND, "layerdrop": 0.1, "apply_spec_augment": False}, sounds,
        refusal="skip_the_layer",
    ),
    "whisper": Entry(
        "audio", "WhisperConfig", "WhisperForConditionalGeneration",
        {**_SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": LENGTH,
         "max_target_positions": LENGTH}, spectra,
    ),
    # mixture of experts, state space
    "mixtral": Entry(
        "mixture of experts", "MixtralConfig", "MixtralForCausalLM",
        _text(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2), text,
    ),
    "olmoe": Entry(
        "mixture of experts", "OlmoeConfig", "OlmoeForCausalLM",
        _text(num_key_value_heads=2, num_experts=4, num_experts_per_tok=2), text,
    ),
    "qwen3-moe": Entry(
        "mixture of experts", "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
        _text(num_key_value_heads=2, head_dim=8, moe_intermediate_size=16, num_experts=4,
              num_experts_per_tok=2), text,
    ),
    "mamba": Entry(
        "state space", "MambaConfig", "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "state_size": 8,
         "num_hidden_layers": DEPTH, **_SPECIAL}, bare,
    ),
}  # fmt: skip
