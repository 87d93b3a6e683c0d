"""Public trap models, from the folder LOWTIDE_CASES: captured exactly, or refused by name."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide.frontends.torch.capture import capture
from lowtide.solver.errors import CaptureError

from .reference import compare, fresh

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("LOWTIDE_CASES", ROOT.parent / "shared" / "cases"))
FILES = sorted(FOLDER.glob("case*.py"))
CLOSES_OVER_BATCH = {"case18_gradient_penalty_outside"}
REFUSED = {
    "case15_sparse_embedding": "sparse gradients",
    "case25_data_dependent_control_flow": "needs the value of a tensor",
    "case35_hooks": "has a forward hook",
}


def load(path: Path) -> Any:
    """Import a case."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="no folder of cases")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case_is_exact_or_refused(path: Path) -> None:
    """No case is silently wrong."""
    torch.set_num_threads(1)
    case = load(path)
    model, batch, loss = case.make()
    if path.stem in REFUSED:
        with pytest.raises(CaptureError, match=REFUSED[path.stem]):
            capture(model, batch, loss, times="none")
        return
    captured = capture(model, batch, loss, times="none")
    same = path.stem in CLOSES_OVER_BATCH
    assert compare(model, lambda: batch if same else fresh(batch), captured) == []
