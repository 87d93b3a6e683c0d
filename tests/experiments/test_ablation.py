"""The ablation, on a small instance made for it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from experiments.ablation import __main__ as study
from experiments.ablation.study import EVERYTHING, TASKS, Task, techniques
from lowtide.solver.options import Techniques
from tests.experiments.test_published import instance

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One instance, and one task for it beside one for an instance that is not there."""
    (tmp_path / "monet_toy.json").write_text(json.dumps(instance("monet_toy")))
    monkeypatch.setenv("LOWTIDE_INSTANCES", str(tmp_path))
    tasks = (Task("monet_toy", "60%"), Task("monet_none", "60%"))
    monkeypatch.setattr(study, "TASKS", tasks)
    return tmp_path


def test_every_switch_is_left_out_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows for everything and for each field; missing instances are said; rows are found again."""
    results = folder / "out.json"
    arguments = ["--time-limit", "3", "--results", str(results)]
    assert study.main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)
    names = [field.name for field in fields(Techniques)]
    assert list(techniques()) == names
    assert [row["without"] for row in rows] == [EVERYTHING, *names]
    assert len({row["overhead"] for row in rows}) == 1  # so small that all find the optimum
    assert "monet_none @ 60%: no such instance, skipped" in err
    saved = results.read_bytes()
    assert study.main(arguments) == 0
    out, _ = capsys.readouterr()
    assert results.read_bytes() == saved
    summary = out.split("left out")[1].splitlines()[1:]
    assert [line.split()[0] for line in summary] == names
    assert study.main(["--only", "nothing"]) == 2
    assert "no row matches" in capsys.readouterr().err


def test_tasks_are_told_apart() -> None:
    """No two rows of the study are the same."""
    assert len({task.name for task in TASKS}) == len(TASKS)
