"""The table: a line for each rival and model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.commands.terminal import aligned

from .rivals import BUDGET, TITLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rows import Outcome, Planned, Result, Rival

HEAD = (
    "model", "rival", "its peak", "its time", "equal", "lowtide's time at that peak",
    "as predicted", "its peak in that time", "equal",
)  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """All lines, aligned."""
    head = ["model", "rival", "peak", "time", "equal", "lowtide: time", "predicted", "peak"]
    return aligned([[*head, "equal"], *lines(results)], right=(2, 3, 5, 6, 7))


def lines(results: Sequence[Result]) -> list[list[str]]:
    """Cells under `HEAD`; times are relative to plain PyTorch's."""
    found = []
    for result in results:
        found.append(
            [result.title, "plain PyTorch", megabytes(result.plain_bytes), "x1", *[""] * 5]
        )
        for rival in result.rivals:
            row = ["", label(rival), *cells(rival)]
            row[4] += _others(result, rival)
            found.append(row)
    return found


def _others(result: Result, rival: Rival) -> str:
    """The settings beside the one in the table whose gradients differ."""
    wrong = [
        f"{other.setting:g}"
        for other in result.budgets
        if rival.name == BUDGET and other.setting != rival.setting
        and other.outcome is not None and not other.outcome.equal
    ]  # fmt: skip
    return f"; at {', '.join(wrong)} no" if wrong else ""


def label(rival: Rival) -> str:
    """The rival with its setting."""
    title = TITLES[rival.name]
    return title if rival.setting is None else f"{title} {rival.setting:g}"


def cells(rival: Rival) -> list[str]:
    """Peak, time and bits of the rival; lowtide's times at its peak, and peak at its time."""
    if rival.outcome is None:
        return ["fails", *[""] * 6]
    one, other = rival.same_peak, rival.same_time
    plans = [plan for plan in (one, other) if plan is not None]
    return [
        megabytes(rival.outcome.peak_bytes),
        f"x{rival.outcome.ratio:.2f}",
        bits(rival.outcome),
        "cannot" if one is None else f"x{one.outcome.ratio:.2f}",
        predicted(one),
        "none" if other is None else megabytes(other.outcome.peak_bytes),
        "" if not plans else "yes" if all(exact(plan) for plan in plans) else "NO",
    ]


def predicted(plan: Planned | None) -> str:
    """Its time as it was told before it ran; empty if it was not."""
    over = None if plan is None else plan.predicted_over_plain
    return "" if over is None else f"x{1.0 + over:.2f}"


def exact(plan: Planned) -> bool:
    """Whether a replay has the bits of plain PyTorch, and the peak of its plan."""
    outcome = plan.outcome
    same = outcome.equal and outcome.buffers_equal
    return same and outcome.peak_bytes == plan.predicted_bytes


def megabytes(amount: int) -> str:
    """Millions of bytes."""
    return f"{amount / 1e6:.1f} MB"


def bits(outcome: Outcome) -> str:
    """Whether loss and gradients are plain PyTorch's, and how far off."""
    if outcome.equal:
        return "yes" if outcome.buffers_equal else "not buffers"
    return f"no, by {outcome.error:.1g}"
