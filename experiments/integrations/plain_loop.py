"""A loop of one's own: one line before it, nothing changes in it.

python -m experiments.integrations.plain_loop [--steps N] [--budget B]
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import lowtide

from .data import VOCABULARY, rows
from .options import options

LENGTH, WIDTH = 64, 64


class Reader(nn.Module):
    """Guesses the next character from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Sequential(
            *[nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 3), nn.GELU()) for _ in range(6)]
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross entropy."""
        x = F.pad(self.embed(input_ids).transpose(1, 2), (2 * len(self.mix), 0))
        scores = self.head(self.mix(x).transpose(1, 2))
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def train(budget: str | None, steps: int) -> tuple[list[float], nn.Module]:
    """Losses of all steps, and the model. No budget: plain PyTorch."""
    torch.manual_seed(0)
    model: nn.Module = Reader()
    data = rows(LENGTH, 64)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, drop_last=True)  # type: ignore[arg-type,var-annotated]
    if budget is not None:
        batch = {name: torch.stack([row[name] for row in data[:16]]) for name in data[0]}
        model = lowtide.fit(
            model, batch, memory_budget=budget, times="roofline", time_limit=10
        )  # this line
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    while len(losses) < steps:
        for batch in loader:
            loss = model(**batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    return losses[:steps], model


if __name__ == "__main__":
    chosen = options(__doc__)
    print(*train(chosen.budget, chosen.steps)[0], sep="\n")
