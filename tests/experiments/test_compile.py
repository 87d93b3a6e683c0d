"""The study of plans under torch.compile, on one tiny model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from experiments.compile import __main__ as command
from experiments.compile.models import MODELS, Mlp

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
    path = tmp_path / "rows.json"
    arguments = ["--models", "mlp", "--settings", "1.0", "0.5", "--repeats", "2"]
    assert command.main([*arguments, "--time-limit", "2", "--output", str(path)]) == 0
    rows = json.loads(path.read_text())
    assert [row["setting"] for row in rows[:2]] == [1.0, 0.5]
    ours = [row for row in rows if row["planner"] == "lowtide" and row["peak_bytes"]]
    assert ours
    for row in ours:
        assert row["peak_bytes"] <= 1.02 * row["setting"]
        assert row["gradient_error"] < 1e-4
