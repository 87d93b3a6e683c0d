"""From timed rounds of whole steps to a calibration, as far as their noise lets them tell.

A median of some rounds is known to its standard error, and where little is computed again that is
as much as what is looked for. So each measured extra time is weighed against what the op times say:
by its standard error, and by how far op times are usually off.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ...solver.calibration import Calibration, Timed
from ...solver.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OP_TIMES_OFF = 0.3  # part of the extra time by which the sum of op times is off
# Two modules of one plan differ by about so much, however long they are timed: where their memory
# lies is chance.
_CHANCE = 0.007
MOST_NOISE = 0.03  # standard error of a plan's time, as part of it: more says nothing

MOST_TIMED = 64  # plans that a calibration goes through: the latest


class NoisyError(InputError):
    """Steps vary too much from run to run."""


@dataclass(frozen=True)
class Rounds:
    """Times of a plan's steps and, in the same rounds, of the step that computes nothing again.

    Attributes
    ----------
    op_ns
        The sum of the plan's op times.
    seconds, base
        One time for each round.
    plan
        Its digest, if the plan is one that somebody asked for.
    """

    op_ns: int
    seconds: Sequence[float]
    base: Sequence[float]
    plan: str = ""


def calibration_of(
    first_ns: int,
    rounds: Sequence[Rounds],
    base: Sequence[float],
    plain: Sequence[float] | None = None,
    known: Calibration | None = None,
) -> Calibration:
    """The calibration that rounds of steps give.

    Parameters
    ----------
    first_ns
        The sum of op times of the plan that computes nothing again.
    rounds
        Of each other plan.
    base
        Times of the plan that computes nothing again, one for each round.
    plain
        Times of plain PyTorch in the same rounds, if measured.
    known
        What was measured before, to which this is added.

    Raises
    ------
    NoisyError
        If a median cannot be told to some percent of a step.
    """
    whole = float(known.points[0][1]) if known is not None else 1e9 * statistics.median(base)
    points: list[tuple[int, float]] = [(first_ns, whole)]
    timed: list[Timed] = []
    for one in rounds:
        extra, error = _against(one.seconds, one.base)
        by_ops = (one.op_ns - first_ns) / max(first_ns, whole)
        belief = (_OP_TIMES_OFF * by_ops) ** 2
        weight = belief / (belief + error**2) if belief else 0.0
        step = whole * (1.0 + weight * extra + (1.0 - weight) * by_ops)
        if one.plan:
            measured = max(1, round(whole * (1.0 + extra)))
            timed.append(Timed(one.plan, one.op_ns, max(1, round(step)), measured))
        else:
            points.append((one.op_ns, step))
    plain_ns = -1 if plain is None else round(whole * (1.0 + _against(plain, base)[0]))
    if known is None:
        return msgspec.structs.replace(Calibration.of(points, plain_ns), timed=tuple(timed))
    # Of two measurements, one as good as the other, the mean.
    plain_ns = known.plain_ns if plain is None else (known.plain_ns + plain_ns) // 2
    latest = {one.plan: one for one in (*known.timed, *timed)}
    kept = tuple(latest.values())[-MOST_TIMED:]
    return msgspec.structs.replace(known, plain_ns=plain_ns, timed=kept)


def _against(times: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Extra time over the steps beside it, as part of those, and its standard error."""
    ratios = [a / b - 1.0 for a, b in zip(times, base, strict=True)]  # a drifting clock cancels
    low, middle, high = statistics.quantiles(ratios, n=4)
    # Of a normal distribution: its deviation by the quartiles, and the error of its median.
    error = 1.2533 * (high - low) / 1.349 / math.sqrt(len(ratios))
    own = 1.0 + middle  # at the smallest budgets a step may take fifty times as long
    if error > MOST_NOISE * own:
        raise NoisyError(
            f"steps vary by {(high - low) / own:.0%} from run to run; on a machine that does "
            "nothing else, or with fewer threads, they can be told"
        )
    return middle, math.hypot(error, _CHANCE)
