"""Files that a command will write: refused before the long work, not after it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..solver.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def writable(path: Path, *, inputs: Sequence[Path] = (), suffixes: Sequence[str] = ()) -> Path:
    """Return `path` if a file can be written there.

    Parameters
    ----------
    path
        The file to write.
    inputs
        Files that the command reads and that must not be overwritten.
    suffixes
        The endings that are understood; empty for any.

    Raises
    ------
    InputError
        If the folder is missing or read-only, the path is a folder or one of the inputs, or the
        ending is not one of `suffixes`.
    """
    if str(path) == "-":
        raise InputError("-o - is not supported: name a file")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file in it")
    if suffixes and path.suffix.lower() not in suffixes:
        raise InputError(f"cannot write {path}: the name must end in {' or '.join(suffixes)}")
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise InputError(f"cannot write {path}: it is the input; choose another name")
    if path.exists() and not path.is_file():  # a device or a pipe: written in place
        if not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: Permission denied")
        return path
    try:
        # Written the way `write_atomic` will: only trying tells on read-only file systems.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    return path
