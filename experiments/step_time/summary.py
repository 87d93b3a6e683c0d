"""What the results say together: where lowtide is ahead, and how well its times were predicted."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rows import Planned, Result, Rival

NEAR = 3.0  # points of plain PyTorch's time


def summary(results: Sequence[Result]) -> list[str]:
    """Sentences on comparisons, replays without recomputation, and predictions."""
    pairs = [(result, rival) for result in results for rival in result.rivals if rival.outcome]
    if not pairs:
        return []
    behind = [f"{result.title}: {rival.name}" for result, rival in pairs if not ahead(rival)]
    where = f" (not: {', '.join(behind)})" if behind else ""
    found = [
        f"Faster at the rival's peak and smaller in its time in {len(pairs) - len(behind)} of "
        f"{len(pairs)} comparisons{where}."
    ]
    ratios = sorted(result.unplanned.outcome.ratio for result in results)
    found.append(
        f"A replay without recomputation takes x{ratios[0]:.2f} to x{ratios[-1]:.2f} of plain "
        "PyTorch's time."
    )
    at_peaks = [rival.same_peak for _, rival in pairs if rival.same_peak is not None]
    told = [
        f"{words} {_distances(plans)}"
        for words, plans in (
            ("for the plans at the rivals' peaks", at_peaks),
            ("for all measured plans", [plan for result in results for plan in result.plans]),
        )
        if any(distance(plan) is not None for plan in plans)
    ]
    if told:
        found.append(f"Predicted and measured time over plain PyTorch's differ {'; '.join(told)}.")
    return found


def ahead(rival: Rival) -> bool:
    """Whether lowtide takes less time within the rival's peak, and less memory in its time."""
    if rival.outcome is None or rival.same_peak is None or rival.same_time is None:
        return False
    return (
        rival.same_peak.outcome.ratio < rival.outcome.ratio
        and rival.same_time.outcome.peak_bytes < rival.outcome.peak_bytes
    )


def distance(plan: Planned) -> float | None:
    """Points between predicted and measured extra time over plain PyTorch; None if not told."""
    if plan.predicted_over_plain is None:
        return None
    return 100.0 * abs(1.0 + plan.predicted_over_plain - plan.outcome.ratio)


def _distances(plans: Sequence[Planned]) -> str:
    """`by 0.9 points in the median, 4.0 at most, 26 of 27 within 3`."""
    points = [off for plan in plans if (off := distance(plan)) is not None]
    near = sum(off <= NEAR for off in points)
    return (
        f"by {statistics.median(points):.1f} points in the median, {max(points):.1f} at most, "
        f"{near} of {len(points)} within {NEAR:g}"
    )
