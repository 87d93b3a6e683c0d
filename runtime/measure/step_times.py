"""From timed rounds of whole steps to a calibration, as far as their noise lets them tell.

A median of some rounds is known to its standard error, and where little is computed again that is
as much as what is looked for. So each measured extra time is weighed against what the op times say:
by its standard error, and by how far op times are usually off.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from ...solver.calibration import Calibration
from ...solver.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OP_TIMES_OFF = 0.3  # part of the extra time by which the sum of op times is off
# Two modules of one plan differ by about so much, however long they are timed: where their memory
# lies is chance.
_CHANCE = 0.007
MOST_NOISE = 0.03  # standard error of an extra time, as part of a step: more says nothing


class NoisyError(InputError):
    """Steps vary too much from run to run."""


def calibration_of(
    op_ns: Sequence[int],
    seconds: Sequence[Sequence[float]],
    base: Sequence[float],
    plain: Sequence[float] | None = None,
) -> Calibration:
    """The calibration that rounds of steps give.

    Parameters
    ----------
    op_ns
        For each plan: the sum of its op times; the first is the plan that computes nothing again.
    seconds
        For each plan: its times, one for each round.
    base
        Times of the first plan, one for each round: all others are compared with these.
    plain
        Times of plain PyTorch, if measured.

    Raises
    ------
    NoisyError
        If a median cannot be told to some percent of a step.
    """
    whole = 1e9 * statistics.median(base)
    first = op_ns[0]
    points: list[tuple[int, float]] = [(first, whole)]
    for total, times in zip(op_ns[1:], seconds[1:], strict=True):
        extra, error = _against(times, base)
        by_ops = (total - first) / max(first, whole)
        belief = (_OP_TIMES_OFF * by_ops) ** 2
        weight = belief / (belief + error**2) if belief else 0.0
        points.append((total, whole * (1.0 + weight * extra + (1.0 - weight) * by_ops)))
    if plain is None:
        return Calibration.of(points)
    return Calibration.of(points, whole * (1.0 + _against(plain, base)[0]))


def _against(times: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Extra time over the steps beside it, as part of those, and its standard error."""
    ratios = [a / b - 1.0 for a, b in zip(times, base, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    # Of a normal distribution: its deviation by the quartiles, and the error of its median.
    error = 1.2533 * (high - low) / 1.349 / math.sqrt(len(ratios))
    if error > MOST_NOISE:
        raise NoisyError(
            f"steps vary by {high - low:.0%} from run to run; on a machine that does nothing else, "
            "or with fewer threads, they can be told"
        )
    return middle, math.hypot(error, _CHANCE)
