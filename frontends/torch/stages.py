"""When each gradient is handed to autograd: backward in stages.

A gradient is final once nothing in backward reads its storage any more. It is also held back while
its parameter is still read, so that an optimizer which steps in a gradient hook cannot change a
weight under a later op. All gradients at once would double the memory of gradients when `.grad`
already holds some; one stage each would cost time; so a stage ends whenever enough bytes are final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_STAGES = 32
MIN_STAGE_BYTES = 256 * 1024
STAGE_NS = 30_000  # what one more stage costs, measured on a slow core
STAGE_SHARE = 0.005  # of the step's time that stages may cost


def stage_count(gradient_bytes: int, step_ns: int) -> int:
    """How many stages are worth their cost.

    Parameters
    ----------
    gradient_bytes
        Sum of the sizes of all gradients.
    step_ns
        Predicted time of the step; 0 if unknown.
    """
    by_bytes = gradient_bytes // MIN_STAGE_BYTES
    by_time = int(step_ns * STAGE_SHARE) // STAGE_NS if step_ns > 0 else MAX_STAGES
    return max(1, min(MAX_STAGES, by_bytes, by_time))


def stage_ends(final: Sequence[int], sizes: Sequence[int], count: int) -> list[int]:
    """Positions after which a stage ends; the last one is the largest of `final`.

    Parameters
    ----------
    final
        For each gradient: position of the step after which it is final.
    sizes
        Bytes of each gradient.
    count
        Largest number of stages.
    """
    if not final:
        return []
    share = -(-sum(sizes) // count)
    ends: list[int] = []
    waiting = 0
    by_position = sorted(range(len(final)), key=lambda g: (final[g], g))
    for place, gradient in enumerate(by_position):
        waiting += sizes[gradient]
        following = by_position[place + 1 : place + 2]
        if following and final[following[0]] == final[gradient]:
            continue
        if not following or waiting >= share:
            ends.append(final[gradient])
            waiting = 0
    return ends
