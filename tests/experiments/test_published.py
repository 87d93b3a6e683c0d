"""The study of published figures, on a folder made for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from experiments.papers.command import INTERRUPTED
from experiments.published import __main__ as study
from experiments.published.cases import Case, Figure, all_cases, select
from experiments.published.measure import Row, Settings, measure
from experiments.published.results import read_results

if TYPE_CHECKING:
    from pathlib import Path

MONET = "monet_toy_4_ckm"
MOCCASIN = "moccasin_fcn_8_vgg_toy"


def instance(name: str, layers: int = 6, size: float = 2**28) -> dict[str, Any]:
    """A chain with its backward pass; 2**28 bytes each, one unit of time each op."""
    nodes = [
        {"id": k, "name": f"f{k}", "op": "f", "time": 10.0, "inputs": [k - 1] if k else [],
         "outputs": [k], "is_backward": False}
        for k in range(layers)
    ]  # fmt: skip
    nodes += [
        {"id": layers + k, "name": f"b{k}", "op": "b", "time": 20.0,
         "inputs": [layers - 1 - k, *([layers + k - 1] if k else [])], "outputs": [layers + k],
         "is_backward": True}
        for k in range(layers)
    ]  # fmt: skip
    data = [{"id": k, "size": size, "alias_of": None, "kind": "a"} for k in range(2 * layers)]
    return {
        "name": name, "source": "made up", "nodes": nodes, "data": data,
        "targets": [2 * layers - 1], "units": {"time": "us", "size": "bytes"},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two instances that are compared, one that is not, and what was published."""
    for name in (MONET, MOCCASIN, "poet_toy"):
        (tmp_path / f"{name}.json").write_text(json.dumps(instance(name)))
    log = {
        "model": "toy", "batch": 4, "budget_gib": 1.25, "status": "optimal_within_tolerance",
        "objective_10us": 25, "bound_10us": 24, "seconds": 3.0,
        "last_incumbent_bound_gap_in_log": None,
    }  # fmt: skip
    sources = {
        "monet_schedule_zoo_gurobi_logs": [log, {**log, "budget_gib": 0.5, "objective_10us": None}],
        "monet_zoo_checkmate_solutions_recomputed": [
            {"model": "toy_4", "budget_gb": 1.5, "objective_10us": 19.0, "no_recompute_10us": 18,
             "solve_time_s": 9.0}
        ],
        "moccasin_fastsa_tables": [
            {"graph": "CM1", "budget_percent": 90, "method": "FastSA", "overhead_percent": 3.0,
             "seconds": 1.0, "met": False}
        ],
    }  # fmt: skip
    document = {"sources": [{"id": key, "rows": rows} for key, rows in sources.items()]}
    (tmp_path / "published.json").write_text(json.dumps(document))
    monkeypatch.setenv("LOWTIDE_INSTANCES", str(tmp_path))
    return tmp_path


def test_cases_are_what_was_published_for_files_of_the_folder(folder: Path) -> None:
    """Budgets and figures come from the file and from papers; other instances get a reason."""
    cases, skipped = all_cases(folder)
    assert [case.name for case in cases if case.instance == MONET] == [
        f"{MONET} @ 1.5 GiB", f"{MONET} @ 1.25 GiB", f"{MONET} @ 0.5 GiB",
    ]  # fmt: skip
    solution, log, none = (case.figures[0] for case in cases if case.instance == MONET)
    assert solution.value == pytest.approx(1 / 18)
    assert log.value == pytest.approx(7 / 18)
    assert log.bound == pytest.approx(6 / 18)
    assert none.value is None
    percent = [case for case in cases if case.instance == MOCCASIN]
    assert [(case.unit, case.amount) for case in percent] == [("percent", 90), ("percent", 80)]
    assert [f.method for f in percent[0].figures] == ["FastSA", "Checkmate"]
    assert dict(skipped)["poet_toy"].startswith("published figures are energy")
    assert dict(skipped)["moccasin_ResNet50_"] == "not in the folder"
    assert select(cases, ["toy_4*@ 0.5"]) == [cases[2]]


def test_rows_are_measured_saved_and_found_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan keeps the budget; a second run takes the stored rows; other settings do not."""
    results = folder / "out.json"
    arguments = ["--only", MONET, "--time-limit", "5", "--results", str(results)]
    assert study.main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "stored" not in err
    rows = json.loads(out)["rows"]
    assert [row["verdict"] for row in rows] == ["equal", "below", "neither"]
    for row in rows[:2]:
        assert row["peak_bytes"] <= row["budget_bytes"]
        assert row["value"] >= row["bound"]
        assert row["status"] == "optimal"
    assert rows[2]["status"] == "infeasible"
    assert len(read_results(results).rows) == 3
    assert study.main(arguments) == 0
    out, err = capsys.readouterr()
    assert err.count("(stored)") == 3
    assert "3 rows: 1 equal, 1 below, 1 neither" in out
    assert study.main([*arguments[:2], "--time-limit", "4", *arguments[4:]]) == 0
    assert "stored" not in capsys.readouterr().err


def test_ctrl_c_prints_the_rows_so_far(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row under way is dropped; those before it are printed."""

    def cut(case: Case, *rest: Any) -> Row:
        if case.amount == 0.5:
            raise KeyboardInterrupt
        return measure(case, *rest)

    monkeypatch.setattr("experiments.published.__main__.measure", cut)
    assert study.main(["--only", MONET, "--time-limit", "5"]) == INTERRUPTED
    out, err = capsys.readouterr()
    assert "2 rows" in out
    assert "interrupted: 2 of 3 rows" in err


def test_missing_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No instances: what to set, and exit code 1."""
    monkeypatch.setenv("LOWTIDE_INSTANCES", str(tmp_path / "none"))
    assert study.main([]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "LOWTIDE_INSTANCES" in err


@pytest.mark.parametrize(
    ("kind", "value", "figures", "verdict"),
    [
        ("overhead", 0.0014, (Figure("a", 0.001, tolerance=0.0005),), "equal"),
        ("overhead", 0.0016, (Figure("a", 0.001, tolerance=0.0005),), "above"),
        ("overhead", 0.02, (Figure("a", 0.01, met=False), Figure("b", 0.03)), "below"),
        ("overhead", 0.02, (Figure("a", 0.01, met=False),), "only ours"),
        ("overhead", None, (Figure("a", 0.01),), "only theirs"),
        ("overhead", None, (Figure("a", None),), "neither"),
        ("batch", 70.0, (Figure("a", 61), Figure("b", 57)), "below"),
        ("batch", 60.0, (Figure("a", 61), Figure("b", 57)), "above"),
        ("batch", 60.0, (Figure("a", 91), Figure("b", 57)), "not comparable"),
    ],
)
def test_verdicts(
    kind: Any, value: float | None, figures: tuple[Figure, ...], verdict: str
) -> None:
    """Only results within the budget count, ties are what print rounds, more batch is better."""
    case = Case(kind, "graph", "budget", "bytes", 1, figures)
    row = Row(case, Settings(1.0), "", 1, 1, 1, value, 90.0, None, 0.0, 0.0, "")
    assert row.verdict == verdict
