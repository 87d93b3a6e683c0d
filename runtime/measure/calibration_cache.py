"""Times of whole steps kept on disk, so that the same step is run for them once.

One JSON file for each machine and setting: digest of a graph and its op times -> calibration.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

import msgspec

from ...frontends.torch.costs.profile_cache import cache_dir, locked, machine_text, read_json
from ...solver.calibration import Calibration  # noqa: TC001  files are read by their types
from ...solver.errors import InputError
from ...solver.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ...solver.graph import Graph

_log = logging.getLogger(__name__)

VERSION = 2
MAX_ENTRIES = 1000


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    machine: str
    entries: dict[str, Calibration] = {}


def known(graph: Graph, device: torch.device, *, plain: bool) -> Calibration | None:
    """What is known of a graph with these op times.

    `plain`: only with the plain step's time, which is 0 where it cannot be measured.
    """
    found = _read(_path(device), device).get(_key(graph))
    if found is None or found.points[0][0] != int(graph.arrays.time.sum()):
        return None  # by a damaged file
    return None if plain and found.plain_ns < 0 else found


def remember(graph: Graph, device: torch.device, found: Calibration) -> None:
    """Add a calibration to the file; a folder that cannot be written costs a log line."""
    path = _path(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            entries = _read(path, device)
            entries.pop(_key(graph), None)
            entries[_key(graph)] = found  # the oldest stand first
            for key in list(entries)[: max(0, len(entries) - MAX_ENTRIES)]:
                del entries[key]
            document = _File(VERSION, machine_text(device), entries)
            write_atomic(path, msgspec.json.encode(document))
    except (OSError, InputError) as error:
        _log.warning("times of whole steps not kept: %s", error)


def _path(device: torch.device) -> Path:
    digest = hashlib.sha256(machine_text(device).encode()).hexdigest()[:16]
    return cache_dir() / f"steps-{device.type}-{digest}.json"


def _read(path: Path, device: torch.device) -> dict[str, Calibration]:
    document = read_json(path, _File)
    if document is None or document.version != VERSION or document.machine != machine_text(device):
        return {}
    entries: dict[str, Calibration] = document.entries
    return entries


def _key(graph: Graph) -> str:
    digest = hashlib.sha256(graph.structure_hash.encode())
    for cost in (graph.arrays.time, graph.arrays.workspace, graph.arrays.size):
        digest.update(cost.astype("<i8").tobytes())
    return digest.hexdigest()[:40]
