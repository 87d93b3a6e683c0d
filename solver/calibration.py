"""From the sum of op times to the time of a step, through steps that were measured as a whole.

Ops timed one by one miss what they do to each other: a step that keeps less finds more of its
memory in the caches, and what autograd and guards take is in no op. So a few whole steps under
different plans are timed, and what lies between them is interpolated. The map never falls, so the
plan with the least op time stays the fastest, and a bound on op time stays a bound.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from .errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan whose own steps were timed.

    Attributes
    ----------
    plan
        Digest of its steps.
    op_ns, step_ns
        The sum of its op times, and what a step is believed to take: the measured time, weighed
        by its error against the op times.
    measured_ns
        The measured time itself.
    """

    plan: str
    op_ns: int
    step_ns: int
    measured_ns: int


class Calibration(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """Measured times of whole steps.

    Attributes
    ----------
    points
        Pairs (sum of op times, time of the step) in nanoseconds. The first is the step that
        computes nothing again; sums rise, times do not fall.
    plain_ns
        Time of the same step in plain PyTorch, -1 if it was not measured.
    timed
        Plans that somebody asked for and that were timed, too. The line goes through their times;
        where these fall, through the mean of neighbours. `points` beside them give way.
    """

    points: tuple[tuple[int, int], ...]
    plain_ns: int = -1
    timed: tuple[Timed, ...] = ()

    def __post_init__(self) -> None:
        """Refuse points that are no rising line."""
        pairs = zip(self.points, self.points[1:], strict=False)
        if (
            not self.points
            or self.points[0][0] < 0
            or self.points[0][1] < 1
            or any(a[0] >= b[0] or a[1] > b[1] for a, b in pairs)
        ):
            raise InputError(
                f"calibration {self.points}: it must be pairs (sum of op times, step time) with "
                "rising sums and times that do not fall"
            )

    @classmethod
    def of(cls, measured: Iterable[tuple[int, float]], plain_ns: float = -1) -> Calibration:
        """A calibration from measurements in any order, whose noise may make times fall.

        The first sum is that of the step that computes nothing again: its time counts as it is.
        Later ones take the mean of neighbours that fall (pool adjacent violators, Ayer et al.
        1955), and at least that time.
        """
        rising = sorted(measured)
        least = rising[0][1]
        times = [least, *_pooled([max(time, least) for _, time in rising[1:]])]
        points: dict[int, int] = {}
        for (total, _), time in zip(rising, times, strict=True):
            points.setdefault(total, max(1, round(time)))
        return cls(tuple(points.items()), round(plain_ns))

    def measured_ns(self, steps: Sequence[str]) -> int | None:
        """Measured time of the plan with these steps; None if it was not timed."""
        digest = digest_of(steps)
        return next((timed.measured_ns for timed in self.timed if timed.plan == digest), None)

    @cached_property
    def line(self) -> tuple[tuple[int, int], ...]:
        """Pairs (sum of op times, time of the step), both rising, from the points and the plans."""
        first, *others = self.points
        sums: dict[int, list[int]] = {}
        for timed in self.timed:
            if timed.op_ns > first[0]:
                sums.setdefault(timed.op_ns, []).append(max(timed.step_ns, first[1]))
        own = sorted(sums)
        pooled = _pooled([sum(sums[total]) / len(sums[total]) for total in own])
        times = [first[1], *map(round, pooled)]
        found = dict(zip([first[0], *own], times, strict=True))
        for total, time in others:
            if total not in found:
                place = bisect_right(own, total)
                above = times[place + 1 : place + 2] or [max(time, times[place])]
                found[total] = min(max(time, times[place]), *above)
        return tuple(sorted(found.items()))

    def step_ns(self, op_ns: int) -> int:
        """Time of a step whose ops take `op_ns` together.

        Between two points on the line through them. Beyond the last one what the ops take more is
        added, or as little of it as the step without recomputation takes of the sum of its ops.
        """
        line = self.line
        first, last = line[0], line[-1]
        place = bisect_right(line, op_ns, key=lambda point: point[0])
        if place == 0:
            return first[1]
        if place < len(line):
            (a, at_a), (b, at_b) = line[place - 1], line[place]
            return at_a + round((op_ns - a) * (at_b - at_a) / (b - a))
        part = min(1.0, first[1] / first[0]) if first[0] else 1.0
        return last[1] + round((op_ns - last[0]) * part)


def digest_of(steps: Sequence[str]) -> str:
    """What a timed plan is known by."""
    return hashlib.sha256("\n".join(steps).encode()).hexdigest()[:16]


def _pooled(times: Sequence[float]) -> list[float]:
    """Times that do not fall: the mean of neighbours that do."""
    pools: list[tuple[float, int]] = []  # mean time, number of points
    for time in times:
        pool = (time, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, count = pools.pop()
            total = mean * count + pool[0] * pool[1]
            pool = (total / (count + pool[1]), count + pool[1])
        pools.append(pool)
    return [mean for mean, count in pools for _ in range(count)]


def step_ns(op_ns: int, calibration: Calibration | None) -> int:
    """Time of a step whose ops take `op_ns` together; without a calibration the same."""
    return op_ns if calibration is None else calibration.step_ns(op_ns)


def overhead(op_ns: int, base_ns: int, calibration: Calibration | None) -> float:
    """(step time - step time without recomputation) / the latter, of two sums of op times."""
    if base_ns <= 0:
        return 0.0
    base = step_ns(base_ns, calibration)
    return (step_ns(op_ns, calibration) - base) / base


def gap(op_ns: int, bound_ns: int, calibration: Calibration | None) -> float:
    """(step time - step time at the lower bound) / step time, of two sums of op times."""
    if op_ns <= 0:
        return 0.0
    step = step_ns(op_ns, calibration)
    return max(0.0, (step - step_ns(bound_ns, calibration)) / step)
