"""The packaging lists what is there, and a wheel holds it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOMES = {"lowtide": "lowtide", "solver": "lowtide.solver", "frontends": "lowtide.frontends"}
HOMES["runtime"] = "lowtide.runtime"


def setuptools_table() -> dict[str, object]:
    """The `tool.setuptools` table of pyproject.toml."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table: dict[str, object] = document["tool"]["setuptools"]
    return table


def packages_in_tree() -> set[str]:
    """Dotted name of every folder with an `__init__.py`, links not followed."""
    found = set()
    for folder, package in HOMES.items():
        for path, folders, files in os.walk(ROOT / folder):
            folders[:] = [name for name in folders if not name.startswith((".", "__"))]
            if "__init__.py" in files:
                inner = Path(path).relative_to(ROOT / folder).parts
                found.add(".".join((package, *inner)))
    return found


def data_in_tree() -> set[str]:
    """Wheel path of every file of the packages that is not Python source."""
    found = set()
    for folder, package in HOMES.items():
        for path, folders, files in os.walk(ROOT / folder):
            folders[:] = [name for name in folders if not name.startswith((".", "__"))]
            inner = Path(*package.split("."), Path(path).relative_to(ROOT / folder))
            found |= {
                (inner / name).as_posix() for name in files if not name.endswith((".py", ".pyc"))
            }
    return found


def test_package_list_matches_the_tree() -> None:
    """A new folder must be added to pyproject.toml, or installations lack it."""
    listed = setuptools_table()["packages"]
    assert isinstance(listed, list)
    assert len(listed) == len(set(listed))
    assert set(listed) == packages_in_tree()


def test_links_point_to_the_three_folders() -> None:
    """Type checkers and uninstalled checkouts find the three folders through links."""
    for name in ("solver", "frontends", "runtime"):
        link = ROOT / "lowtide" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / name


def imports_of(path: Path, *, when_loaded: bool = False) -> set[str]:
    """Full names of all that a module imports, wherever in it; `lowtide.` for the three folders.

    `when_loaded`: only what it needs to be loaded, neither in functions nor for types.
    """
    inner = path.relative_to(ROOT).with_suffix("").parts
    package = [*HOMES[inner[0]].split("."), *inner[1:]][:-1]
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    if when_loaded:
        late = (ast.FunctionDef, ast.ClassDef)
        body = [
            node
            for node in body
            if not isinstance(node, late)
            and not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ]
    found = set()
    for node in (inside for statement in body for inside in ast.walk(statement)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            stem = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{stem}.{alias.name}" for alias in node.names}
    return found


def test_modules_import_each_other_in_no_circle() -> None:
    """Each module can be the first that is loaded."""
    modules = {}
    for folder in ("solver", "frontends", "runtime"):
        for path in (ROOT / folder).rglob("*.py"):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            modules[".".join([HOMES[folder], *inner]).removesuffix(".__init__")] = path
    needs = {
        name: {
            found if found in modules else found.rpartition(".")[0]
            for found in imports_of(path, when_loaded=True)
            if found.startswith("lowtide.")
        }
        for name, path in modules.items()
    }
    assert sum(map(len, needs.values())) > 500
    TopologicalSorter(needs).prepare()  # raises with the circle


@pytest.mark.parametrize(
    ("folder", "above"),
    [
        ("solver", ("lowtide.frontends", "lowtide.runtime", "torch")),
        ("frontends", ("lowtide.runtime",)),
    ],
)
def test_folders_import_only_what_is_below_them(folder: str, above: tuple[str, ...]) -> None:
    """The solver knows no PyTorch, the frontends no runtime: not in functions, nor for types."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert len(paths) > 20
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in sorted(imports_of(path))
        if f"{name}.".startswith(tuple(f"{home}." for home in above))
    ]
    assert not wrong


def test_every_console_script_exists() -> None:
    """The entry point in pyproject.toml names a callable."""
    from lowtide.__main__ import main

    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert document["project"]["scripts"] == {"lowtide": "lowtide.__main__:main"}
    assert callable(main)


def test_version_is_the_same_everywhere() -> None:
    """pyproject.toml and the package agree on the version."""
    import lowtide

    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert document["project"]["version"] == lowtide.__version__


@pytest.mark.slow
def test_wheel_holds_every_module_and_data_file(tmp_path: Path) -> None:
    """A built wheel has exactly the packages' files, the template and py.typed included."""
    source = tmp_path / "source"
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listing.stdout.splitlines():
        origin, copy = ROOT / name, source / name
        if not origin.exists() or origin.is_symlink():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(origin.read_bytes())
    if not (source / "README.md").exists():
        (source / "README.md").write_text("readme\n")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q",
         "-w", str(tmp_path), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = set()
    for folder, package in HOMES.items():
        for path in (ROOT / folder).rglob("*.py"):
            inner = path.relative_to(ROOT / folder)
            if folder == "lowtide" and inner.parts[0] in HOMES:
                continue
            modules.add(Path(*package.split("."), inner).as_posix())
    assert names == modules | data_in_tree()
    assert {"lowtide/py.typed", "lowtide/report/report.html.j2"} <= names
