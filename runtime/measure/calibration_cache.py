"""Times of whole steps kept on disk, so that the same step is run for them once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ...frontends.torch.costs.hardware import machine_text
from ...solver.cache import Cache
from ...solver.calibration import Calibration

if TYPE_CHECKING:
    import torch

    from ...solver.graph import Graph

VERSION = 3
MAX_ENTRIES = 1000


def known(graph: Graph, device: torch.device, *, plain: bool) -> Calibration | None:
    """What is known of a graph with these op times.

    `plain`: only with the plain step's time, which is 0 where it cannot be measured.
    """
    found = _cache(device).get(_key(graph))
    if found is None or found.points[0][0] != int(graph.arrays.time.sum()):
        return None  # by a damaged file
    return None if plain and found.plain_ns < 0 else found


def remember(graph: Graph, device: torch.device, found: Calibration) -> None:
    """Add a calibration to the file; a folder that cannot be written costs a log line."""
    _cache(device).update({_key(graph): found})


def _cache(device: torch.device) -> Cache[Calibration]:
    """Digest of a graph and its op times -> calibration."""
    return Cache(
        f"steps-{device.type}", machine_text(device), Calibration,
        version=VERSION, most=MAX_ENTRIES,
    )  # fmt: skip


def _key(graph: Graph) -> str:
    digest = hashlib.sha256(graph.structure_hash.encode())
    for cost in (graph.arrays.time, graph.arrays.workspace, graph.arrays.size):
        digest.update(cost.astype("<i8").tobytes())
    return digest.hexdigest()[:40]
