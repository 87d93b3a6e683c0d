"""The README's tables are those of the results files."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from experiments.kusumoto2019.__main__ import Row as Smallest
from experiments.overhead.study import Row as OverheadRow
from experiments.papers.keep import keep_list
from experiments.papers.rows import Row
from experiments.papers.trained import Row as TrainedRow
from experiments.profile_quality.plans import Cost
from experiments.readme.__main__ import ROOT, main, renewed
from experiments.readme.blocks import BLOCKS, demo
from experiments.readme.literature import kumar, kusumoto
from experiments.readme.tables import best_others, compared
from experiments.readme.timed import overhead, profile_quality
from lowtide.solver.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_readme_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody wrote a figure by hand, or forgot to renew the tables."""
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_every_results_file_has_its_place() -> None:
    """A table is printed in full, with as many cells in each line; text may stand below it."""
    pages = (ROOT / "README.md", ROOT / "experiments" / "README.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name, make in BLOCKS.items():
        table = make(ROOT / "experiments")
        if table is not None:
            assert table in text, name
            rows = table.partition("\n\n")[0].splitlines()
            widths = {line.count("|") for line in rows}
            assert len(widths) == 1, name


def test_tables_from_results(tmp_path: Path) -> None:
    """What was measured stands in the table; what was not is called so."""
    (tmp_path / "demo" / "results").mkdir(parents=True)
    row = {
        "method": "auto", "budget_bytes": 2**20, "predicted_peak_bytes": 2**19,
        "predicted_overhead": 0.125, "measured_overhead": 0.1, "lower_bound_overhead": 0.1249,
    }  # fmt: skip
    none = {**row, "method": "sqrt_n", "predicted_peak_bytes": None}
    document = [{"model": "gpt", "rows": [row, none]}]
    (tmp_path / "demo" / "results" / "results.json").write_text(json.dumps(document))
    table = demo(tmp_path)
    assert table is not None
    assert "| 1.00 MiB | **lowtide** | 512.00 KiB | 12.50% | 10.0% | 12.49% |" in table
    assert "| 1.00 MiB | sqrt(n) | cannot |  |  |  |" in table
    small = Smallest("vgg19", 64, 9, "lowtide", 4 * 10**9, 8 * 10**9, 0.15, 3 * 10**9, None, 1.0)
    whole = Smallest("vgg19", 64, 9, "keep_everything", 8 * 10**9, 8 * 10**9, 0.0, None, 7.0, 0.0)
    (tmp_path / "kusumoto2019").mkdir()
    (tmp_path / "kusumoto2019" / "results.json").write_bytes(msgspec.json.encode([whole, small]))
    table = kusumoto(tmp_path)
    assert table is not None
    assert "4.00 (50%, +15%) | 3.00" in table
    plans = [
        TrainedRow("gpt", 9, budget, "auto", "feasible", 10, 10, 0.1, 0.2, True)
        for budget in (3, 2, 1)
    ]
    (tmp_path / "kumar2019").mkdir()
    (tmp_path / "kumar2019" / "results.json").write_bytes(msgspec.json.encode(plans))
    table = kumar(tmp_path)
    assert table is not None
    assert "| gpt | **lowtide** | 10.0%, 20.0% | 10.0%, 20.0% | 10.0%, 20.0% |" in table
    with pytest.raises(InputError, match="no place for the table demo"):
        renewed(["nothing", "nothing"], tmp_path)
    text = "".join(f"<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in BLOCKS)
    for texts in ([text, ""], ["", text]):
        after = "".join(renewed(texts, tmp_path))
        assert re.search(r"<!-- demo -->\n\| budget", after)
        assert "<!-- batches -->\nold\n" in after


def test_tables_of_timed_steps(tmp_path: Path) -> None:
    """Replays by the length of a step; plans with their differences, and a line for all."""
    assert overhead(tmp_path) is None
    assert profile_quality(tmp_path) is None
    slow = OverheadRow("slow", 9, 10, 60.0, 57.0, -5.0, -4.0, 1.5)
    fast = OverheadRow("fast", 1234, 10, 2.0, 2.2, 10.0, 9.0, 3.0)
    keep_list(tmp_path / "overhead" / "results.json", [slow, fast], lambda row: row.model)
    table = overhead(tmp_path)
    assert table is not None
    assert table.splitlines()[2:] == [
        "| fast | 1,234 | 2.00 | 2.20 | +10.0% | +9.0% | 3.0% |",
        "| slow | 9 | 60.00 | 57.00 | -5.0% | -4.0% | 1.5% |",
    ]
    costs = [Cost("cnn", "auto", "60%", 10.0, 9.0, 2.0), Cost("cnn", "log_n", "60%", 20.0, 23.0, 2)]
    keep_list(tmp_path / "profile_quality" / "results.json", costs, lambda cost: cost.model)
    table = profile_quality(tmp_path)
    assert table is not None
    assert table.splitlines()[2:] == [
        "| cnn | **lowtide** | 60% | 10.0% | 9.0% | -1.0 | 2.0 |",
        "| cnn | log(n) | 60% | 20.0% | 23.0% | +3.0 | 2.0 |",
        "| all 2 plans |  |  |  |  | 2.0 in the median, 3.0 at most |  |",
    ]


def test_tables_of_comparisons() -> None:
    """The fastest of the others stands beside lowtide; budgets without a plan are called so."""

    def row(method: str, budget: int, overhead: float | None, status: str = "feasible") -> Row:
        text = "" if overhead is not None else "needs more"
        return Row("step", 9, str(budget), budget, method, status, text, None, overhead, None, 0.1)

    rows = [
        row("auto", 2**30, 0.1, "optimal"), row("rotor", 2**30, 0.2), row("lru", 2**30, 0.3),
        row("auto", 2**29, 0.4), row("rotor", 2**29, None, "infeasible"),
        row("auto", 2**28, None, "infeasible"), row("rotor", 2**28, None, "infeasible"),
    ]  # fmt: skip
    short = best_others(rows, ("1", "1/2", "1/4"))
    assert short.endswith("| step | **10.00%**\\*, 20.00% rotor | **40.00%**, none | none |")
    whole = compared(rows)
    assert "| step (9 ops) | 1.00 GiB | 512.00 MiB | 256.00 MiB |" in whole
    assert "| rotor | 20.00% | cannot | cannot |" in whole
