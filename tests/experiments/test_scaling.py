"""The study of depth, on networks small enough for a test."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from experiments.readme.planned import scaling
from experiments.scaling import __main__ as command
from experiments.scaling.study import FAMILIES, Row, exponent, measure

if TYPE_CHECKING:
    from pathlib import Path


def row(depth: int, seconds: float) -> Row:
    """A row of which only depth and seconds matter."""
    return Row("f", depth, 1, 1, 1, 1, 1.0, seconds, 1.0, 0.1, 0.0, 0.3, {})


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_exponent_of_a_power_law(power: float) -> None:
    """The slope is the power, whatever the factor."""
    rows = [row(depth, 3.0 * depth**power) for depth in (100, 200, 500, 1000)]
    assert math.isclose(exponent(rows, "cpu_seconds"), power, rel_tol=1e-9)


@pytest.mark.slow
def test_residual_networks_keep_the_budget_of_the_root() -> None:
    """Memory at four times the depth is about twice, at less than one more forward run."""
    rows = measure(FAMILIES[0], (30, 120), gap=0.05, time_limit=6.0)
    assert len(rows) == 2
    for it in rows:
        assert it.planned_bytes <= it.budget_bytes < it.peak_bytes
        assert it.overhead <= it.forward
        known = [overhead for overhead in it.rivals.values() if overhead is not None]
        assert all(it.overhead <= overhead for overhead in known)
    assert math.isclose(rows[1].budget_bytes / rows[0].budget_bytes, 2.0, rel_tol=0.01)


def test_json_holds_rows_and_exponents(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One document with a row a network and a fit a family."""
    monkeypatch.setattr(command, "measure", lambda *_, **__: [row(100, 2.0), row(200, 4.0)])
    out = str(tmp_path / "scaling")
    assert command.main(["--only", "residual", "--json", "--out", out]) == 0
    table = scaling(tmp_path)
    assert table is not None
    assert table.count("\n") == 3
    document = json.loads(capsys.readouterr().out)
    assert [it["depth"] for it in document["rows"]] == [100, 200]
    assert math.isclose(document["exponents"]["residual"]["cpu_seconds"], 1.0)
