"""Measured peaks over ten budgets: each within its budget, none above that of a larger budget."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.replay import replay
from lowtide.solver.sweep import sweep

from ..models import profiled

if TYPE_CHECKING:
    import torch


@pytest.mark.usefixtures("one_thread")
def test_measured_peaks_fall_with_the_budget() -> None:
    """From the peak without recomputation down."""
    case, captured = profiled("cnn")
    resident = captured.graph.resident_bytes
    batch = case.batch(1)
    peaks = []
    for row in sweep(captured.graph, "82%..100%:10", time_limit=3.0, gap=0.1).rows:
        assert row.plan is not None
        module = copy.deepcopy(replay(captured, row.plan))

        def step(module: torch.nn.Module = module) -> torch.Tensor:
            loss: torch.Tensor = module(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        step()  # what is allocated once and stays is there from now on
        for parameter in module.parameters():
            parameter.grad = None
        peaks.append(resident + measure_peak(step).peak_bytes)
        assert peaks[-1] == row.plan.peak_bytes <= row.budget_bytes
    assert len(peaks) == 10
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]
