"""What is known of a compiled step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Row:
    """One compiled step.

    Attributes
    ----------
    planner, setting
        `torch` with its share, or `lowtide` with the bytes beyond the resident ones.
    peak_bytes
        Measured peak beyond what was there before the step; 0 without a plan.
    milliseconds, fastest_ms
        Median of the timed steps, and the fastest of them: the one that least else ran beside.
    budget_bytes
        Of a plan: what it was asked for, beyond the same.
    predicted_bytes, followed_bytes
        Of a plan: its own peak, and that of the program compiled from it, beyond the same.
    overhead
        Of a plan: predicted share of additional time.
    gradient_error, same_bits
        Largest distance of a gradient from eager's, over the largest gradient; whether all
        gradients are, to the bit, those of inductor's default split.
    compile_s
        Seconds until the first step was done.
    smallest_bytes
        Where there is no plan: the smallest peak found.
    program
        SHA-256 of what inductor wrote. Equal programs are timed once.
    share
        Of a split that lowtide took from PyTorch's partitioner: its setting.
    """

    model: str
    planner: str
    setting: float
    peak_bytes: int = 0
    milliseconds: float = 0.0
    fastest_ms: float = 0.0
    budget_bytes: int = 0
    predicted_bytes: int = 0
    followed_bytes: int = 0
    overhead: float = 0.0
    gradient_error: float = 0.0
    same_bits: bool = False
    compile_s: float = 0.0
    smallest_bytes: int = 0
    program: str = ""
    share: float | None = None


def read(path: Path) -> list[Row]:
    """Rows of a results file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Row])
