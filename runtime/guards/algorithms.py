"""Says when a library may choose another algorithm for a rerun than for the first run."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ...frontends.torch.captured import Captured
    from ...solver.schedule import Schedule

_log = logging.getLogger(__name__)


def warn_of_benchmarks(captured: Captured, schedule: Schedule) -> None:
    """Warn if convolutions run again while cuDNN picks algorithms by timing them.

    The choice is made for each thread; backward runs in another one than forward. A rerun may then
    differ from the first run in the last bits.
    """
    if captured.device.type != "cuda" or not torch.backends.cudnn.benchmark:
        return
    counts = Counter(schedule.computes())
    again = [op for op, count in counts.items() if count > 1]
    if any("convolution" in captured.graph.ops[op].kind for op in again):
        _log.warning(
            "torch.backends.cudnn.benchmark is on: a convolution that runs again may be run by "
            "another algorithm and differ in the last bits. Switch it off for bit-equal training"
        )
