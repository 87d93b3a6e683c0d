"""Measurements kept on disk, so that the next profile of the same step runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ....solver.cache import Cache
from .hardware import machine_text

if TYPE_CHECKING:
    from pathlib import Path

    import torch

VERSION = 5
MAX_ENTRIES = 20_000


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one call costs.

    Attributes
    ----------
    op
        The operator, for people who read the file.
    time_ns
        Median time in nanoseconds; -1 if only memory was measured.
    peak_bytes
        Most bytes allocated at once during the call, outputs included.
    sizes
        Bytes of the storage of each element of the output; -1 for one that is not a tensor.
    shares
        For each element: index of an earlier element with the same storage, -1 for none,
        -2 if it shares the storage of an argument.
    first_ns
        Nanoseconds of the run under the meter, cold: an upper bound of the time.
    strides
        Strides of each element of the output, in elements; empty for one that is not a tensor.
    """

    op: str
    time_ns: int
    peak_bytes: int
    sizes: tuple[int, ...]
    shares: tuple[int, ...]
    first_ns: int = 0
    strides: tuple[tuple[int, ...], ...] = ()


class ProfileCache(Cache[Measurement]):
    """The measurements of one machine: signature key -> measurement.

    Parameters
    ----------
    device
        Device whose measurements these are.
    folder
        Where the file is; default `cache_dir()`.
    """

    def __init__(self, device: torch.device, folder: Path | None = None) -> None:
        super().__init__(
            f"profile-{device.type}", machine_text(device), Measurement,
            version=VERSION, most=MAX_ENTRIES, folder=folder,
        )  # fmt: skip
