"""The ablation, on a small instance made for it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from experiments.ablation import __main__ as study
from experiments.ablation.study import EVERYTHING, TASKS, Row, Task, losses, techniques
from lowtide.solver.options import Techniques
from tests.experiments.test_published import instance

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One instance, and one task for it beside one for an instance that is not there."""
    (tmp_path / "monet_toy.json").write_text(json.dumps(instance("monet_toy")))
    monkeypatch.setenv("LOWTIDE_INSTANCES", str(tmp_path))
    tasks = (Task("monet_toy", "60%", usual=True), Task("monet_none", "60%", usual=True))
    monkeypatch.setattr(study, "TASKS", tasks)
    return tmp_path


@pytest.mark.slow
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


def test_mip_start_is_left_out_beside_the_cutoff(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone it would change nothing: it is compared with the row without a cutoff."""
    assert study.main(["--without", "mip_start", "--time-limit", "3", "--json"]) == 0
    rows = [Row(**row) for row in json.loads(capsys.readouterr().out)]
    assert [row.without for row in rows] == [EVERYTHING, "mip_start", "cutoff"]
    ((name, pairs),) = [found for found in losses(rows) if found[0] == "mip_start"]
    assert name == "mip_start"
    assert [(a.without, b.without) for a, b in pairs] == [("cutoff", "mip_start")]


def test_tasks_are_told_apart_and_the_usual_ones_take_twenty_minutes() -> None:
    """No two rows of the study are the same; every technique is in the usual selection."""
    assert len({task.name for task in TASKS}) == len(TASKS)
    usual = [task for task in TASKS if task.usual]
    count = len(techniques())
    longest = sum(task.seconds * (1 + len(task.only or techniques())) for task in usual)
    assert longest <= 20 * 60
    assert sum(not task.only for task in usual) >= 3
    assert count == len({name for task in usual for name in (task.only or techniques())})
