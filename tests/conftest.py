"""Guards the run: the tests must test this checkout, not another one that is installed."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "lowtide": "lowtide",
    "lowtide.solver": "solver",
    "lowtide.frontends": "frontends",
    "lowtide.runtime": "runtime",
}


def pytest_configure() -> None:
    """Stop if `lowtide` is not the one beside these tests.

    LOWTIDE_TEST_INSTALLED=1 tests an installed package on purpose; it needs `-o pythonpath=`.
    """
    if os.environ.get("LOWTIDE_TEST_INSTALLED") == "1":
        return
    for name, folder in FOLDERS.items():
        file = importlib.import_module(name).__file__
        expected = ROOT / folder / "__init__.py"
        if file is None or Path(file).resolve() != expected:
            pytest.exit(f"{name} is {file}, not {expected}: uninstall the other copy", 4)
