"""`lowtide sweep`: the table, the document, the plans and the curve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lowtide.__main__ import main
from lowtide.frontends.chains import linear_chain
from lowtide.solver.files import read_plan, write_graph

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """A chain as a file."""
    path = tmp_path / "step.graph.json"
    write_graph(linear_chain(8), path)
    return path


def test_plans_curve_and_document(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan for each budget, named by it; the curve; one JSON document; news on stderr."""
    folder, curve = tmp_path / "plans", tmp_path / "curve.svg"
    code = main(
        ["sweep", str(graph_file), "-b", "60%..100%:3,2GiB", "-o", str(folder), "--plot",
         str(curve), "--time-limit", "5", "--json"]
    )  # fmt: skip
    assert code == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["budget"] for row in rows] == ["60%", "80%", "100%", "2GiB"]
    assert "4 of 4" in err
    names = [f"step.{text}.plan.json" for text in ("60pct", "80pct", "100pct", "2GiB")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    for name, row in zip(names, rows, strict=True):
        plan = read_plan(folder / name)
        assert (plan.budget_bytes, plan.time_ns) == (row["budget_bytes"], row["time_ns"])
        assert main(["check", str(graph_file), str(folder / name)]) == 0
    assert "<svg" in curve.read_text()


def test_table_has_a_line_for_each_budget(
    graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without options eight budgets; a missed one says the smallest that was found."""
    assert main(["sweep", str(graph_file), "-b", "20%,80%", "--time-limit", "3", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    head, first, second = out.splitlines()
    assert head.split()[0] == "budget"
    assert first.startswith("20%")
    assert "smallest budget" in first
    assert second.startswith("80%")
    assert "optimal" in second


def test_exit_codes(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """3 where no budget can be met, 2 where one cannot be understood."""
    assert main(["sweep", str(graph_file), "-b", "1,2", "--time-limit", "1", "-q"]) == 3
    for wrong in ("", "20%..90%", "often"):
        assert main(["sweep", str(graph_file), "-b", wrong]) == 2
        assert "error:" in capsys.readouterr().err
