"""`fit`: capture, solve and replay in one call."""

from __future__ import annotations

import pytest
import torch

from lowtide.runtime.fit import fit
from lowtide.runtime.meter import measure_peak
from lowtide.runtime.verify import verify
from lowtide.solver.errors import InfeasibleError

from .models import Mlp, make, square

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_budget_is_kept(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module trains as the plain one does, and its measured peak is within the budget."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model, batches = Mlp(width=8, depth=6), [torch.randn(50, 8) for _ in range(2)]
    module = fit(model, batches[0], memory_budget="60%", loss_fn=square, time_limit=5)
    found = verify(model, module, batches, repeats=1)
    assert found.ok, found.first_difference
    assert module.plan.schedule.recomputes() > 0

    def step() -> torch.Tensor:
        loss: torch.Tensor = module(batches[0])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    resident = module.captured.graph.resident_bytes
    assert resident + measure_peak(step).peak_bytes == module.plan.peak_bytes
    assert module.plan.peak_bytes <= module.plan.budget_bytes


def test_an_impossible_budget_is_refused(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget below what any schedule needs raises, and names one that can be met."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    case = make("mlp")
    with pytest.raises(InfeasibleError) as caught:
        fit(case.model, case.batch(0), memory_budget=1000, loss_fn=case.loss_fn, time_limit=5)
    assert caught.value.smallest_bytes is not None
