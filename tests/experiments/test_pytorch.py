"""The study of plans under torch.compile, on one tiny model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from experiments.pytorch import __main__ as command
from experiments.pytorch.models import MODELS, Mlp
from experiments.pytorch.rows import Row
from experiments.pytorch.show import cells, line, picture

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_give_a_loss(name: str) -> None:
    """Each step has a scalar loss and gradients for all its parameters."""
    model, batch = MODELS[name]()
    loss = model(*[item[:2] for item in batch])
    assert loss.shape == ()
    loss.backward()
    if name != "cnn":
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rows_of_both_planners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of PyTorch's settings and each peak that they have has a row; ours keeps the peak."""
    monkeypatch.setitem(MODELS, "mlp", lambda: (Mlp(64, 6), (torch.randn(512, 64),)))
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    path = tmp_path / "results.json"
    arguments = ["--models", "mlp", "--settings", "1.0", "0.5", "--repeats", "2"]
    assert command.main([*arguments, "--time-limit", "2", "--out", str(tmp_path)]) == 0
    rows = json.loads(path.read_text())
    assert [row["setting"] for row in rows[:2]] == [1.0, 0.5]
    ours = [row for row in rows if row["planner"] == "lowtide" and row["peak_bytes"]]
    assert ours
    for row in ours:
        assert row["peak_bytes"] <= row["budget_bytes"]
        assert row["peak_bytes"] == row["followed_bytes"]
        assert row["gradient_error"] < 1e-4


def test_lines_and_pictures_of_rows(tmp_path: Path) -> None:
    """One line for each peak of PyTorch's, with our step at that peak, or why there is none."""
    mib = 2**20
    rows = [
        Row("mlp", "torch", 1.0, 4 * mib, 10.0, 10.0),
        Row("mlp", "torch", 0.0, 4 * mib, 20.0, 19.0),
        Row("mlp", "torch", 0.5, 2 * mib, 12.0, 12.0),
        Row("mlp", "lowtide", 4 * mib, 3 * mib, 9.5, 9.0, 4 * mib, 3 * mib, 3 * mib, 0.1),
        Row("mlp", "lowtide", 2 * mib, smallest_bytes=3 * mib),
        Row("mlp", "lowtide", mib, mib, 15.0, 15.0, mib, mib, mib, 0.2),
    ]
    assert cells(rows) == [
        ["mlp", "1, 0", "4.00 MiB", "10.00", "3.00 MiB", "9.00", "0.900"],
        ["mlp", "0.5", "2.00 MiB", "12.00", "cannot below 3.00 MiB", "", ""],
        ["mlp", "none", "", "", "1.00 MiB", "15.00", ""],
    ]
    assert "no plan, smallest 3145728" in line(rows[4])
    path = tmp_path / "mlp.svg"
    picture(rows, "mlp", path)
    assert "activation_memory_budget" in path.read_text()
