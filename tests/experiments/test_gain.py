"""The study of what integer programming gains, on a chain."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from experiments.gain.__main__ import main
from experiments.gain.study import METHODS
from experiments.readme.planned import gain
from lowtide.frontends.chains import linear_chain
from lowtide.solver.files import write_graph

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_every_method_has_a_row_at_every_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto` is never above the best heuristic; the table has a line for each budget."""
    write_graph(linear_chain(12), tmp_path / "unet.graph.json.gz")
    arguments = ["--only", "unet", "--budgets", "50%,70%", "--time-limit", "2"]
    arguments += ["--graphs", str(tmp_path), "--out", str(tmp_path / "gain")]
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["budget"], row["method"]) for row in rows} == {
        (budget, method) for budget in ("50%", "70%") for method in METHODS
    }
    table = gain(tmp_path)
    assert table is not None
    assert table.count("\n") == 3
    assert "| U-Net, 4 images | 50% |" in table
    for budget in ("50%", "70%"):
        found = {row["method"]: row["overhead"] for row in rows if row["budget"] == budget}
        auto = found.pop("auto")
        assert all(value is None or auto <= value + 1e-9 for value in found.values())
    assert main(arguments) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "gain"
    assert [line.split()[2] for line in lines] == ["50%", "70%"]
