"""Measurements kept on disk, so that the next profile of the same step runs nothing.

One JSON file for each machine, torch version and thread setting: signature key -> measurement.
A writer locks a file beside it, merges what is there, writes anew and renames: a reader never sees
half a file, and of several writers none loses entries (except where the system has no such lock).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import platformdirs
import torch

from ....solver.errors import InputError
from ....solver.files import write_atomic
from .heap import keeps_freed_memory

try:
    import fcntl
except ImportError:  # not on Windows: there, of two writers at once one may lose entries
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger(__name__)

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


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    machine: str
    entries: dict[str, Measurement] = {}


def cache_dir() -> Path:
    """Folder of lowtide's caches: `LOWTIDE_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("LOWTIDE_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("lowtide"))


def device_name(device: torch.device) -> str:
    """Name of the hardware behind a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    import platform

    return platform.processor() or platform.machine()


def machine_text(device: torch.device) -> str:
    """All that a measurement depends on beside its signature: hardware, version, settings."""
    parts = [device_name(device), f"torch {torch.__version__}"]
    if device.type == "cuda":
        matmul: Any = torch.backends.cuda.matmul
        cudnn: Any = torch.backends.cudnn
        parts += [
            f"cuda {torch.version.cuda}",
            f"tf32 {matmul.fp32_precision} {cudnn.conv.fp32_precision}",
            f"cudnn {cudnn.enabled} {cudnn.benchmark} {cudnn.deterministic}",
        ]
    else:
        parts += [
            f"threads {torch.get_num_threads()}",
            f"mkldnn {torch.backends.mkldnn.enabled}",
            f"isa {torch.backends.cpu.get_cpu_capability()}",
        ]
        if keeps_freed_memory():
            parts.append("freed memory kept")
    parts.append(f"deterministic {torch.are_deterministic_algorithms_enabled()}")
    return ", ".join(parts)


class ProfileCache:
    """The measurements of one machine.

    Parameters
    ----------
    device
        Device whose measurements these are.
    folder
        Where the file is; default `cache_dir()`.
    """

    def __init__(self, device: torch.device, folder: Path | None = None) -> None:
        self.machine = machine_text(device)
        digest = hashlib.sha256(self.machine.encode()).hexdigest()[:16]
        self.path = (folder or cache_dir()) / f"profile-{device.type}-{digest}.json"
        self._known: dict[str, Measurement] | None = None

    def get(self, key: str) -> Measurement | None:
        """The measurement of a signature key, if known."""
        if self._known is None:
            self._known = self._read()
        return self._known.get(key)

    def update(self, fresh: Mapping[str, Measurement]) -> None:
        """Add measurements to the file; a folder that cannot be written costs a log line."""
        if not fresh:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_suffix(".lock")):
                self._known = self._merged(fresh)
                document = _File(VERSION, self.machine, self._known)
                write_atomic(self.path, msgspec.json.encode(document))
        except (OSError, InputError) as error:
            self._known = self._merged(fresh)
            _log.warning("profile cache not written: %s", error)

    def _merged(self, fresh: Mapping[str, Measurement]) -> dict[str, Measurement]:
        """What the file holds, with `fresh` added and the oldest beyond the limit gone."""
        merged = self._read()
        for key, value in fresh.items():
            # Re-insert: the oldest entries stand first and go first.
            merged.pop(key, None)
            merged[key] = value
        for key in list(merged)[: max(0, len(merged) - MAX_ENTRIES)]:
            del merged[key]
        return merged

    def _read(self) -> dict[str, Measurement]:
        document = read_json(self.path, _File)
        if document is None:
            return {}
        if document.version != VERSION or document.machine != self.machine:
            _log_once(f"profile cache {self.path} is of another version: ignored")
            return {}
        entries: dict[str, Measurement] = document.entries
        return entries


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that `path` stands for, waiting for whoever holds it."""
    if fcntl is None:
        yield
        return
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file ends it
        yield


def read_json(path: Path, kind: type[Any]) -> Any:
    """A cached document, or None if it is missing or damaged (the latter with a log line)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, InputError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log_once(f"cache file {path} cannot be read ({error}): ignored")
        return None


@functools.cache
def _log_once(text: str) -> None:
    """A file is read again before it is written."""
    _log.warning("%s", text)
