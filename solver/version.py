"""The version, and those of what plans depend on."""

from __future__ import annotations

import importlib.metadata

__version__ = "0.1.0"


def versions(*packages: str) -> dict[str, str]:
    """Versions of lowtide and of installed `packages`, for plans and bug reports."""
    found = {"lowtide": __version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
