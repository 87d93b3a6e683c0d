"""Guards the run: the tests are of this checkout, and named alike in every process."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

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


ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process: workers must collect the same tests.

    Such names hold an address, or a set of several members as text: its order is that of hashes,
    and those of strings are drawn anew in each process.
    """
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None:
            continue
        sets = {str(held) for held in _sets(callspec.params.values())}
        if ADDRESS.search(item.name) or any(text in item.name for text in sets):
            raise pytest.UsageError(f"{item.nodeid}: its name changes with each run: give it an id")


def _sets(values: Iterable[object]) -> Iterable[object]:
    """Sets of several members among the values and inside them."""
    for value in values:
        if isinstance(value, set | frozenset):
            if len(value) > 1 and any(isinstance(member, str | bytes) for member in value):
                yield value
        elif isinstance(value, dict):
            yield from _sets([*value.keys(), *value.values()])
        elif isinstance(value, list | tuple):
            yield from _sets(value)
