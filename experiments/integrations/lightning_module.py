"""Lightning: the network inside the LightningModule is fitted in the first training step.

There the batch is on its device, the module in training mode and the precision plugin's autocast
on: all that a capture must agree with.

    python -m experiments.integrations.lightning_module [--steps N] [--budget B]
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn

import lowtide

from .data import rows
from .options import options
from .plain_loop import LENGTH, Reader


class LitReader(lightning.LightningModule):
    """A language model; no budget: plain PyTorch."""

    def __init__(self, budget: str | None = None) -> None:
        super().__init__()
        self.budget = budget
        self.model: nn.Module = Reader()
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """The loss."""
        if self.budget is not None:  # these three lines
            self.model = lowtide.fit(
                self.model, batch, memory_budget=self.budget, times="roofline", time_limit=10
            )
            self.budget = None
        loss: torch.Tensor = self.model(**batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
        """Log the loss."""
        self.log("validation", self.model(**batch), batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def train(budget: str | None, steps: int, **more: Any) -> tuple[list[float], Any]:
    """Losses of all steps, and the module. `more` goes to the trainer."""
    lightning.seed_everything(0, verbose=False)
    data: Any = rows(LENGTH, 64)
    module = LitReader(budget)
    defaults: dict[str, Any] = {
        "precision": "bf16-mixed", "gradient_clip_val": 1.0, "logger": False,
        "enable_checkpointing": False,
    }  # fmt: skip
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
        **{**defaults, **more},
    )  # fmt: skip
    trainer.fit(
        module,
        torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, drop_last=True),
        torch.utils.data.DataLoader(data, batch_size=10),
    )
    return module.losses, module


if __name__ == "__main__":
    chosen = options(__doc__)
    print(*train(chosen.budget, chosen.steps)[0], sep="\n")
