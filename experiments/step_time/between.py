"""Where to look for the smallest plan in a rival's time, by what was measured so far."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .plans import DOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOSE = 0.1  # of its peak: how well the smallest plan is to be known


def aim(timed: Mapping[int, float], limit: float, floor: int) -> int | None:
    """The bytes to plan for next; None if the smallest peak in the time is known well enough.

    Parameters
    ----------
    timed
        Bytes that a plan has, or was made for, to its measured time.
    limit
        The time that it may take.
    floor
        Bytes within which there is no plan.
    """
    high = min((room for room, ratio in timed.items() if ratio <= limit), default=None)
    if high is None:
        return None
    slow = (room for room, ratio in timed.items() if room < high and ratio > limit)
    low = max(slow, default=0)
    low = max(low, min(floor, high))
    if high - low <= CLOSE * high:
        return None
    return math.isqrt(low * high) if low else int(DOWN * high)
