"""`lowtide checkpoint`: plans by hand from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lowtide.__main__ import main
from lowtide.frontends.chains import transformer
from lowtide.solver.check import check
from lowtide.solver.files import read_plan, write_graph

if TYPE_CHECKING:
    from pathlib import Path

GRAPH = transformer(3)


@pytest.mark.parametrize(
    "rule",
    [
        ["--segments", "4"],
        ["--mirror", "cheap"],
        ["--border-bytes", "8MiB"],
        ["--depth", "2", "--branches", "2"],
    ],
    ids=lambda rule: rule[0],
)
def test_rules_write_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: list[str]
) -> None:
    """The plan passes the checker and the document says what it costs."""
    source, target = tmp_path / "step.graph.json", tmp_path / "step.plan.json"
    write_graph(GRAPH, source)
    assert main(["checkpoint", str(source), "-o", str(target), "--json", *rule]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = read_plan(target)
    check(GRAPH, plan)
    assert document["plan"] == str(target)
    assert plan.method == f"checkpoint:{rule[0][2:].replace('-', '_')}"


def test_refusals_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written; the exit codes are those of every command."""
    source, target = tmp_path / "step.graph.json", tmp_path / "step.plan.json"
    write_graph(GRAPH, source)
    common = ["checkpoint", str(source), "-o", str(target)]
    for rule, code, word in (
        ([], 2, "exactly one of --segments"),
        (["--segments", "elsewhere"], 2, "no forward op"),
        (["--segments", ""], 2, "no segment is named"),
        (["--segments", " , "], 2, "no segment is named"),
        (["--segments", "9" * 5000], 2, "no forward op"),
        (["--border-bytes", "20%"], 2, "--border-bytes '20%' is not an amount"),
        (["--border-bytes", "max"], 2, "--border-bytes 'max' is not an amount"),
        (["--border-bytes", "9 parsec"], 2, "--border-bytes '9 parsec' has the unknown unit"),
        (["--segments", "4", "--budget", "1%"], 3, "infeasible"),
    ):
        assert main([*common, *rule]) == code
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert word in lines[0]
        assert not target.exists()
    assert main([*common, "--segments", "4", "--budget", "1%", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "infeasible"
    assert document["smallest_bytes"] > document["budget_bytes"]
