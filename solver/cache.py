"""Results kept on disk, so that no other process has to find them again.

A cache is one JSON file for all that its entries depend on beside their keys: machine, versions,
settings. A writer locks a file beside it, merges what is there, writes anew and renames: a reader
never sees half a file, and of several writers none loses entries (except where the system has no
such lock). What cannot be read or written costs a log line, and no more.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import platformdirs

from .errors import InputError
from .files import write_atomic

try:
    import fcntl
except ImportError:  # not on Windows: there, of two writers at once one may lose entries
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger(__name__)

_Entry = TypeVar("_Entry")


def cache_dir() -> Path:
    """Folder of lowtide's caches: `LOWTIDE_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("LOWTIDE_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("lowtide"))


class _File(msgspec.Struct, Generic[_Entry], forbid_unknown_fields=True):
    version: int
    machine: str
    entries: dict[str, _Entry] = {}


class Cache(Generic[_Entry]):
    """Entries of one kind from one machine.

    Parameters
    ----------
    name
        What the name of the file begins with.
    machine
        All that every entry depends on, in words.
    kind
        Type of an entry, as `msgspec` reads it.
    version
        Of the entries: files of others are ignored.
    most
        How many entries are kept; the oldest go first.
    folder
        Where the file is; default `cache_dir()`.
    """

    def __init__(
        self,
        name: str,
        machine: str,
        kind: type[_Entry],
        *,
        version: int,
        most: int,
        folder: Path | None = None,
    ) -> None:
        self.machine, self.version, self.most = machine, version, most
        digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
        self.path = (folder or cache_dir()) / f"{name}-{digest}.json"
        generic: Any = _File
        self._file: type[_File[_Entry]] = generic[kind]
        self._known: dict[str, _Entry] | None = None

    def get(self, key: str) -> _Entry | None:
        """The entry of a key, if known."""
        if self._known is None:
            self._known = self._read()
        return self._known.get(key)

    def update(self, fresh: Mapping[str, _Entry]) -> None:
        """Add entries to the file; they are known from now on, even if it cannot be written."""
        if not fresh:
            return
        self._known = None
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_suffix(".lock")):
                self._known = self._merged(fresh)
                document = _File(self.version, self.machine, self._known)
                write_atomic(self.path, msgspec.json.encode(document))
        if self._known is None:
            self._known = self._merged(fresh)

    def _merged(self, fresh: Mapping[str, _Entry]) -> dict[str, _Entry]:
        """What the file holds, with `fresh` added and the oldest beyond the limit gone."""
        merged = self._read()
        for key, value in fresh.items():
            # Re-insert: the oldest entries stand first and go first.
            merged.pop(key, None)
            merged[key] = value
        for key in list(merged)[: max(0, len(merged) - self.most)]:
            del merged[key]
        return merged

    def _read(self) -> dict[str, _Entry]:
        try:
            document = msgspec.json.decode(self.path.read_bytes(), type=self._file)
        except FileNotFoundError:
            return {}
        except (OSError, InputError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log_once(f"cache file {self.path} cannot be read ({error}): ignored")
            return {}
        if document.version != self.version or document.machine != self.machine:
            _log_once(f"cache file {self.path} is of another version: ignored")
            return {}
        return document.entries


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file of a cache: where that fails, one line is logged."""
    try:
        yield
    except (OSError, InputError) as error:
        _log.warning("cache file %s not written: %s", path, error)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that `path` stands for, waiting for whoever holds it."""
    if fcntl is None:
        yield
        return
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file ends it
        yield


@functools.cache
def _log_once(text: str) -> None:
    """A file is read again before it is written."""
    _log.warning("%s", text)
