"""The study for a GPU runs on the CPU, too; a part that fails leaves the others alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from experiments.gpu import __main__ as study

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiments.gpu.setting import Setting


def _results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_a_failing_part_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows so far, its error, and what other parts find."""

    def broken(setting: Setting) -> Iterator[dict[str, Any]]:
        yield {"model": "a"}
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(study.PARTS, "parity", broken)
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--parts", "parity,environment"]
    assert study.main(arguments) == 1
    found = _results(tmp_path)
    assert found["parity"][0] == {"model": "a"}
    assert found["parity"][1]["error"] == "RuntimeError: no such kernel"
    assert found["environment"][0]["device"] == "cpu"


@pytest.mark.slow
def test_small_parity_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits agree and peaks are the predicted ones to the byte."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path / "cache"))
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--small", "--parts", "parity"]
    assert study.main(arguments) == 0
    rows = _results(tmp_path)["parity"]
    assert len(rows) == 4
    for row in rows:
        assert row["equal"]
        assert row["repeatable"]
        assert row["predicted_peak"] == row["measured_peak"]
