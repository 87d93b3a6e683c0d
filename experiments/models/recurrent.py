"""Layers of LSTM cells unrolled in Python: the recurrent network of Chen et al. 2016."""

from __future__ import annotations

import torch
from torch import nn


class Unrolled(nn.Module):
    """Layers of LSTM cells over a sequence, and a loss at its end.

    Parameters
    ----------
    inputs, hidden, classes
        Sizes of a frame, of each state, and of the softmax.
    layers
        Cells on top of each other.
    """

    def __init__(
        self, inputs: int = 50, hidden: int = 1024, classes: int = 5000, layers: int = 4
    ) -> None:
        super().__init__()
        sizes = [inputs] + [hidden] * (layers - 1)
        self.hidden = hidden
        self.cells = nn.ModuleList(nn.LSTMCell(size, hidden) for size in sizes)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of sequences (length, batch, inputs) with one label each."""
        zeros = x.new_zeros(x.shape[1], self.hidden)
        states = [(zeros, zeros) for _ in self.cells]
        for frame in x:
            value = frame
            for number, cell in enumerate(self.cells):
                states[number] = cell(value, states[number])
                value = states[number][0]
        return nn.functional.cross_entropy(self.head(value), labels)
