"""Graphs and plans as files: one JSON document each, gzip by name, written whole or not at all.

A document is `{"schema": ..., "schema_version": ..., "lowtide_version": ..., "body": {...}}`.
Readers upgrade older versions through explicit functions and refuse newer ones by name.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .errors import InputError
from .graph import Graph
from .plan import Plan
from .version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

_Body = TypeVar("_Body", Graph, Plan)

GRAPH_SCHEMA = "lowtide.graph"
PLAN_SCHEMA = "lowtide.plan"
CURRENT_VERSION = {GRAPH_SCHEMA: 3, PLAN_SCHEMA: 1}
# (schema, version) -> function from a body of that version to one of the next.
UPGRADES: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    (GRAPH_SCHEMA, 1): lambda body: body,  # 2 added what an op may overwrite
    (GRAPH_SCHEMA, 2): lambda body: body,  # 3 added what only later executions read
}


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    schema_version: int
    lowtide_version: str
    body: Any


def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph; gzip if the name ends in `.gz`."""
    _write(GRAPH_SCHEMA, graph, path)


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """Read a graph.

    Raises
    ------
    InputError
        If the file is missing, damaged, of another kind or from a newer lowtide.
    """
    return _read(GRAPH_SCHEMA, Graph, path)


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan; gzip if the name ends in `.gz`."""
    _write(PLAN_SCHEMA, plan, path)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan; same errors as `read_graph`."""
    plan = _read(PLAN_SCHEMA, Plan, path)
    try:
        _ = plan.schedule  # refuse damaged steps here, where the file's name is known
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return plan


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Write to a temporary file beside `path`, then rename: never half a file.

    Links are followed; devices and pipes are written in place, since a rename would replace them.

    Raises
    ------
    InputError
        If the folder does not exist or cannot be written.
    """
    try:
        target = Path(path).resolve()
        if target.exists() and not (target.is_file() or target.is_dir()):
            target.write_bytes(data)
            return
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {path}: {error.strerror or error}") from None
        raise


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Content of a file, unpacked if gzip; `InputError` with the path if that fails."""
    try:
        data = Path(path).read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path}: damaged gzip file") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _write(schema: str, value: Graph | Plan, path: str | os.PathLike[str]) -> None:
    document = _Document(schema, CURRENT_VERSION[schema], __version__, value)
    data = msgspec.json.encode(document)
    if str(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    else:
        data = msgspec.json.format(data, indent=1) + b"\n"
    write_atomic(path, data)


def _read(schema: str, kind: type[_Body], path: str | os.PathLike[str]) -> _Body:
    try:
        document = msgspec.json.decode(read_bytes(path), type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a {schema} file: {error}") from None
    if document.schema != schema:
        raise InputError(f"{path} is a {document.schema} file, expected {schema}")
    current = CURRENT_VERSION[schema]
    if document.schema_version > current:
        raise InputError(
            f"{path} was written by lowtide {document.lowtide_version} ({schema} version "
            f"{document.schema_version}); this is {__version__}, which reads up to version "
            f"{current}: upgrade lowtide"
        )
    body = document.body
    for version in range(document.schema_version, current):
        upgrade = UPGRADES.get((schema, version))
        if upgrade is None:
            raise InputError(f"{path}: {schema} version {version} is not a known version")
        body = upgrade(body)
    try:
        return msgspec.convert(body, type=kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is a damaged {schema} file: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
