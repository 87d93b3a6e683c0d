"""Real data without a download: Python's own documentation text, and letters in many typefaces."""

from __future__ import annotations

import itertools
import pydoc_data.topics
import string
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator


def text_batches(batch: int, length: int, seed: int = 0) -> Iterator[tuple[torch.Tensor]]:
    """Endless batches of bytes from the topics that `help()` shows, with the next byte as target.

    Yields
    ------
    tuple
        One int64 tensor (batch, length + 1).
    """
    text = "\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
    data = torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - length - 1, (batch,), generator=generator)
        yield (torch.stack([data[s : s + length + 1] for s in starts.tolist()]),)


def letter_batches(batch: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of letters, drawn in the typefaces that matplotlib ships, slightly moved.

    Yields
    ------
    tuple
        Images (batch, 1, 32, 32) in [0, 1] and labels (batch,), 0 for A to 25 for Z.
    """
    images, labels = _letters()
    generator = torch.Generator().manual_seed(seed)
    while True:
        pick = torch.randint(len(images), (batch,), generator=generator)
        moves = torch.randint(-3, 4, (batch, 2), generator=generator).tolist()
        moved = [
            torch.roll(images[i], (dy, dx), dims=(0, 1))
            for i, (dy, dx) in zip(pick.tolist(), moves, strict=True)
        ]
        yield torch.stack(moved).unsqueeze(1), labels[pick]


def _letters(side: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    faces = ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono", "STIXGeneral")
    weights, styles = ("normal", "bold"), ("normal", "italic")
    images, labels = [], []
    for face, weight, style in itertools.product(faces, weights, styles):
        for label, letter in enumerate(string.ascii_uppercase):
            figure = Figure(figsize=(1, 1), dpi=side)
            canvas: Any = FigureCanvasAgg(figure)
            figure.text(
                0.5, 0.5, letter, family=face, weight=weight, style=style, fontsize=50,
                ha="center", va="center",
            )  # fmt: skip
            canvas.draw()
            pixels = np.asarray(canvas.buffer_rgba())[:, :, 0]
            images.append(torch.tensor(1.0 - pixels / 255.0, dtype=torch.float32))
            labels.append(label)
    return torch.stack(images), torch.tensor(labels)
