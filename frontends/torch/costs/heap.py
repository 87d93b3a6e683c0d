"""Keeps the memory that tensors give back on the CPU for the next ones.

PyTorch has a caching allocator on CUDA. On the CPU it asks the C library, and glibc hands large
blocks, and what is free at the end of its heap, back to the system at once: the next tensor pays
for every page anew, some microseconds for 4 KiB. A replay under a tight budget allocates more often
than the plain step and pays more often. Numbers and peaks do not change by it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

# <malloc.h> of glibc
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_NEVER = -1  # as a size: the largest there is


class _State:
    keeps = False


def keep_freed_memory() -> bool:
    """Have the process keep freed CPU memory until it ends, as CUDA's caching allocator does.

    Steps on the CPU get faster and steadier, plain ones and replayed ones, the more the larger
    their tensors are; what the process holds stays near its highest peak. It concerns the whole
    process, so nothing here does it unasked: call it before training, or before a profile (times
    that are measured with and without it are cached apart).

    Returns
    -------
    bool
        Whether the C library understood. False where it is not glibc.
    """
    if not _State.keeps and sys.platform.startswith("linux"):
        library: Any = ctypes.CDLL(None)
        tune = getattr(library, "mallopt", None)
        if tune is not None:
            # Blocks from the heap whatever their size, and none of it is given back.
            _State.keeps = tune(_MMAP_MAX, 0) == 1 and tune(_TRIM_THRESHOLD, _NEVER) == 1
    return _State.keeps


def keeps_freed_memory() -> bool:
    """Whether `keep_freed_memory` is in force."""
    return _State.keeps
