"""Tables of studies that time single steps: replays without recomputation, and predicted plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..overhead.study import Row as OverheadRow
from ..papers.keep import read_list
from ..profile_quality.plans import Cost, differences
from .cells import markdown, name_of

if TYPE_CHECKING:
    from pathlib import Path


def overhead(studies: Path) -> str | None:
    """Time of replays that recompute nothing, over plain PyTorch's."""
    rows = read_list(studies / "overhead" / "results.json", OverheadRow)
    if not rows:
        return None
    lines = [
        [
            row.model, f"{row.ops:,}", f"{row.plain_ms:.2f}", f"{row.replayed_ms:.2f}",
            f"{row.overhead_percent:+.1f}%", f"{row.fastest_overhead_percent:+.1f}%",
            f"{row.spread_percent:.1f}%",
        ]
        for row in sorted(rows, key=lambda row: row.plain_ms)
    ]  # fmt: skip
    head = (
        "model", "operators", "plain, ms", "replayed, ms", "extra time", "of the fastest steps",
        "spread",
    )  # fmt: skip
    return markdown(head, lines)


def profile_quality(studies: Path) -> str | None:
    """Predicted and measured extra time of plans, and how far apart all of them are."""
    found = read_list(studies / "profile_quality" / "results.json", Cost)
    if not found:
        return None
    lines = [
        [
            cost.model, name_of(cost.method), cost.budget, f"{cost.predicted_percent:.1f}%",
            f"{cost.measured_percent:.1f}%",
            f"{cost.measured_percent - cost.predicted_percent:+.1f}", f"{cost.spread_percent:.1f}",
        ]
        for cost in found
    ]  # fmt: skip
    middle, most = differences(found)
    summary = f"{middle:.1f} in the median, {most:.1f} at most"
    lines.append([f"all {len(found)} plans", "", "", "", "", summary, ""])
    head = (
        "model", "method", "budget", "predicted", "measured", "difference, points",
        "spread, points",
    )  # fmt: skip
    return markdown(head, lines)
