"""`lowtide compare`: the table, the document and the curve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lowtide.__main__ import main
from lowtide.frontends.chains import linear_chain
from lowtide.solver.files import write_graph

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.solver.compare import Comparison


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """A chain as a file."""
    path = tmp_path / "step.graph.json"
    write_graph(linear_chain(8), path)
    return path


def test_table_has_a_line_for_each_method_and_budget(
    graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block for each budget; budgets and peaks are told in three ways."""
    code = main(["compare", str(graph_file), "-b", "50%,max", "-m", "keep_everything,sqrt_n", "-q"])
    assert code == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line for line in out.splitlines() if line.startswith(("keep", "sqrt"))]
    assert [line.split()[0] for line in lines] == ["keep_everything", "sqrt_n"] * 2
    assert all("MiB (" in line and " B, " in line and "%)" in line for line in lines)
    first, second = (line for line in out.splitlines() if line.startswith("budget"))
    assert first.startswith("budget 50%: ")
    assert second.startswith("budget max: ")
    assert second.endswith(" B, 100.0%)")
    assert "no plan: smallest peak seen " in lines[0]
    assert "0.000%" in lines[2]


def test_document_and_curve(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON document on stdout, news on stderr, and the picture in its file."""
    curve = tmp_path / "curve.svg"
    code = main(
        ["compare", str(graph_file), "-b", "60%,80%", "-m", "sqrt_n,greedy", "--json",
         "--plot", str(curve)]
    )  # fmt: skip
    assert code == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [row["method"] for row in document["rows"]] == ["sqrt_n", "greedy"] * 2
    assert {row["budget_percent"] for row in document["rows"]} == {60.0, 80.0}
    assert document["interrupted"] is False
    assert "4 of 4: greedy at 80%" in err
    text = curve.read_text()
    assert "<svg" in text
    assert "sqrt(n)" in text


def test_interrupted_comparison_prints_what_is_done(
    graph_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C: the rows so far, then exit code 130."""
    import dataclasses

    from lowtide.solver import compare as module

    whole = module.compare

    def cut(*arguments: object, **options: object) -> Comparison:
        found = whole(*arguments, **options)  # type: ignore[arg-type]
        return dataclasses.replace(found, interrupted=True)

    monkeypatch.setattr(module, "compare", cut)
    assert main(["compare", str(graph_file), "-b", "max", "-m", "greedy", "--json"]) == 130
    out, err = capsys.readouterr()
    assert json.loads(out)["interrupted"] is True
    assert "interrupted" in err
