"""Many steps under a tight budget, resumed in the middle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from experiments.soak.__main__ import report
from experiments.soak.study import study

from ..models import Case, Gpt, make, tokens

if TYPE_CHECKING:
    from pathlib import Path


def small() -> Case:
    """A GPT of two layers whose results outweigh a saved state of the generator."""
    return Case(Gpt(29, 32, 2, 24), None, tokens(29, 8, 24))


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of this test alone, one thread."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    torch.set_num_threads(1)


def test_a_resumed_run_is_the_plain_one_in_flat_memory() -> None:
    """One other bit, or one byte more, would be seen."""
    found = study(small, steps=24, budget="42%", time_limit=3.0)
    assert found.ok, report(found)
    assert found.recomputed > 0
    assert found.measured_bytes < 0.8 * found.plain_bytes
    assert not replace(found, growth_bytes=4).ok
    assert not replace(found, highest_bytes=found.highest_bytes + 4).ok
    assert not replace(found, equal_losses=23).ok


@pytest.mark.slow
def test_five_hundred_steps() -> None:
    """The study as it is run."""
    found = study(lambda: make("gpt", seeded=False), steps=500, budget="40%", time_limit=10.0)
    assert found.ok, report(found)
