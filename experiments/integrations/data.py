"""A little real text, as token numbers: the licence of this project."""

from __future__ import annotations

from pathlib import Path

import torch

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
VOCABULARY = 128  # ASCII


def rows(length: int, count: int) -> list[dict[str, torch.Tensor]]:
    """Overlapping pieces of the text: `input_ids` and `labels` of `length` characters each."""
    ids = torch.tensor(list(TEXT.read_bytes())).clamp(max=VOCABULARY - 1)
    starts = range(0, len(ids) - length, max(1, (len(ids) - length) // count))
    pieces = [ids[start : start + length] for start in starts][:count]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]
