"""What the README says must work as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lowtide.__main__ import main

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run() -> None:
    """The code of the README runs in order, and its parity check says True."""
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 3
    printed: list[tuple[Any, ...]] = []
    names: dict[str, Any] = {"print": lambda *words: printed.append(words)}
    torch.manual_seed(0)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (True,) in printed
    assert names["plan"].peak_bytes <= names["plan"].budget_bytes


def test_files_it_names_exist() -> None:
    """Pictures and folders that the README links to are in the repository."""
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_commands_it_lists_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Every `lowtide COMMAND` of the README has a help page."""
    commands = sorted(set(re.findall(r"^lowtide ([a-z]+)", README, flags=re.MULTILINE)))
    assert commands == [
        "capture",
        "check",
        "checkpoint",
        "compare",
        "env",
        "memory",
        "replay",
        "report",
        "smallest",
        "solve",
        "sweep",
    ]
    for command in commands:
        assert main([command, "--help"]) == 0
        assert command in capsys.readouterr().out


def test_make_targets_it_names_exist() -> None:
    """`make demo`, `make test` and the others are in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_no_placeholder_is_left() -> None:
    """The results section holds results."""
    assert "RESULTS" not in README
    assert README.count("lowtide**") >= 5
