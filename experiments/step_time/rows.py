"""What the study writes down."""

from __future__ import annotations

import msgspec


class Outcome(msgspec.Struct, frozen=True):
    """A step as it was measured.

    Attributes
    ----------
    peak_bytes
        Largest number of bytes at once in loss and backward, beyond parameters, buffers and batch.
    ratio
        Processor time of the step over that of the plain PyTorch steps of the same round, the
        median of the rounds.
    equal
        Whether loss and gradients are those of plain PyTorch in every bit.
    error
        Largest distance of a gradient from plain PyTorch's, over the largest gradient.
    buffers_equal
        Whether buffers (statistics of batch norm) are, too.
    """

    peak_bytes: int
    ratio: float
    equal: bool
    error: float
    buffers_equal: bool


class Planned(msgspec.Struct, frozen=True):
    """A plan of lowtide, replayed.

    Attributes
    ----------
    outcome
        As measured.
    predicted_bytes, predicted_overhead
        The plan's peak beyond the resident bytes, and its extra time over a replay that recomputes
        nothing.
    gap, seconds
        The plan's gap, None without a bound; seconds of its solve.
    predicted_over_plain
        The plan's extra time over plain PyTorch, told before it ran; None where whole steps could
        not be timed.
    """

    outcome: Outcome
    predicted_bytes: int
    predicted_overhead: float
    gap: float | None
    seconds: float
    predicted_over_plain: float | None = None


class Rival(msgspec.Struct, frozen=True):
    """What PyTorch offers, and lowtide beside it.

    Attributes
    ----------
    name, setting
        `block`, `selective`, or `budget` with its setting.
    outcome
        None where it fails.
    failure
        Why it does.
    same_peak
        Lowtide within the peak that was measured here.
    same_time
        The smallest of lowtide's measured plans that takes no longer; None if none is so fast.
    """

    name: str
    setting: float | None
    outcome: Outcome | None
    failure: str = ""
    same_peak: Planned | None = None
    same_time: Planned | None = None


class Result(msgspec.Struct, frozen=True):
    """One model.

    Attributes
    ----------
    model, title, ops
        Its name, how tables call it, operators of its step.
    plain_bytes, plain_ms
        Peak of plain PyTorch beyond the resident bytes, and milliseconds of a step.
    unplanned
        A replay that recomputes nothing.
    rivals
        One of each kind: of the budgets the fastest of those that save a tenth of the peak.
    budgets
        Every setting of the budget; times of fewer repeats but for the one among the rivals.
    plans
        All plans of lowtide that were measured, by peak.
    """

    model: str
    title: str
    ops: int
    plain_bytes: int
    plain_ms: float
    unplanned: Planned
    rivals: list[Rival]
    budgets: list[Rival]
    plans: list[Planned]
