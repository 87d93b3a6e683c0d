"""From the sum of op times to the time of a step, through steps that were measured as a whole.

Ops timed one by one miss what they do to each other: a step that keeps less finds more of its
memory in the caches, and what autograd and guards take is in no op. So a few whole steps under
different plans are timed, and what lies between them is interpolated. The map never falls, so the
plan with the least op time stays the fastest, and a bound on op time stays a bound.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

from .errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Measured times of whole steps.

    Attributes
    ----------
    points
        Pairs (sum of op times, time of the step) in nanoseconds. The first is the step that
        computes nothing again; sums rise, times do not fall.
    plain_ns
        Time of the same step in plain PyTorch, -1 if it was not measured.
    """

    points: tuple[tuple[int, int], ...]
    plain_ns: int = -1

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
        pools: list[tuple[float, int]] = []  # mean time, number of points
        for _, time in rising[1:]:
            pool = (max(time, least), 1)
            while pools and pools[-1][0] > pool[0]:
                mean, count = pools.pop()
                total = mean * count + pool[0] * pool[1]
                pool = (total / (count + pool[1]), count + pool[1])
            pools.append(pool)
        times = [least, *(mean for mean, count in pools for _ in range(count))]
        points: dict[int, int] = {}
        for (total, _), time in zip(rising, times, strict=True):
            points.setdefault(total, max(1, round(time)))
        return cls(tuple(points.items()), round(plain_ns))

    def step_ns(self, op_ns: int) -> int:
        """Time of a step whose ops take `op_ns` together.

        Between two points on the line through them. Beyond the last one what the ops take more is
        added, or as little of it as the step without recomputation takes of the sum of its ops.
        """
        sums = [total for total, _ in self.points]
        first, last = self.points[0], self.points[-1]
        place = bisect_right(sums, op_ns)
        if place == 0:
            return first[1]
        if place < len(sums):
            (a, at_a), (b, at_b) = self.points[place - 1], self.points[place]
            return at_a + round((op_ns - a) * (at_b - at_a) / (b - a))
        part = min(1.0, first[1] / first[0]) if first[0] else 1.0
        return last[1] + round((op_ns - last[0]) * part)


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
