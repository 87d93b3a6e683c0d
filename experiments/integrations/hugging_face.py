"""Hugging Face: one line between making the trainer and `train()`.

python -m experiments.integrations.hugging_face [--steps N] [--budget B]
"""

from __future__ import annotations

import tempfile
from typing import Any

import transformers

import lowtide

from .data import VOCABULARY, rows
from .options import options


def train(budget: str | None, steps: int, **more: Any) -> tuple[list[float], Any]:
    """Losses of all steps, and the model. No budget: plain PyTorch; `more` for the trainer."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=4, n_head=2,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=2,
            learning_rate=1e-3, bf16=True, logging_steps=1, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, dataloader_drop_last=True, **more,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=transformers.GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=rows(64, 64),
        )
        if budget is not None:
            lowtide.fit_trainer(
                trainer, memory_budget=budget, times="roofline", time_limit=10
            )  # this line
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.model


if __name__ == "__main__":
    chosen = options(__doc__)
    print(*train(chosen.budget, chosen.steps)[0], sep="\n")
