"""Cells and lines of the README's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.report.words import label_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float | None, digits: int = 2) -> str:
    """`12.34%`; nothing for None."""
    return "" if value is None else f"{100 * value:.{digits}f}%"


def name_of(method: str) -> str:
    """The method as the README writes it."""
    label = label_of(method)
    if method == "auto":
        return f"**{label}**"
    return f"`{label}`" if "_" in label else label
