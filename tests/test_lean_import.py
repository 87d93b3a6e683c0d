"""`import lowtide` is free, and its names are what type checkers are told."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide

HEAVY = (
    "torch", "numba", "matplotlib", "ortools", "highspy", "pulp", "networkx", "joblib", "numpy",
    "rich", "typer", "jinja2", "msgspec",
)  # fmt: skip


def imported_by(code: str) -> set[str]:
    """Heavy modules that a fresh interpreter has loaded after `code`."""
    report = f"\nimport sys\nprint(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def promised() -> dict[str, str]:
    """Public name -> module, from the imports under TYPE_CHECKING."""
    assert lowtide.__file__ is not None
    tree = ast.parse(Path(lowtide.__file__).read_text())
    (branch,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = {}
    for node in branch.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name  # an explicit re-export
            names[alias.name] = f".{node.module}"
    return names


def test_import_loads_nothing_heavy() -> None:
    """Importing the package loads neither PyTorch nor a solver nor anything else that is big."""
    assert imported_by("import lowtide") == set()


def test_command_line_starts_without_pytorch() -> None:
    """`lowtide --version` and the help need the command line's own libraries only."""
    code = "from lowtide.__main__ import main\nassert main(['--version']) == 0"
    assert imported_by(code) <= {"typer", "rich", "msgspec"}


def test_solving_needs_no_pytorch() -> None:
    """Graphs go in and plans come out without PyTorch and without matplotlib."""
    loaded = imported_by("import lowtide\nlowtide.solve, lowtide.compare, lowtide.check")
    assert not loaded & {"torch", "matplotlib", "networkx"}


def test_lazy_names_are_those_for_type_checkers() -> None:
    """The two lists of public names in `lowtide/__init__.py` are equal."""
    assert vars(lowtide)["_MODULES"] == promised()


@pytest.mark.parametrize("name", sorted(promised()))
def test_every_public_name_loads(name: str) -> None:
    """Each promised name is there, and `dir` shows it."""
    assert getattr(lowtide, name) is not None
    assert name in dir(lowtide)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist fails like that of any module."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lowtide.nothing  # type: ignore[attr-defined]
