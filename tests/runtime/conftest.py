"""Fixtures of the runtime's tests."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.runtime.plans import plan_cache

from .schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lowtide.solver.graph import Graph
    from lowtide.solver.plan import Plan


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One torch thread: small ops, and machines that are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _planned_at_random(graph: Graph, budget: int, **_: Any) -> Plan:
    """A plan with recomputations, without a search."""
    schedule = random_schedule(graph, random.Random(3))
    assert schedule.recomputes() > 0
    return plan_of(graph, schedule, budget_bytes=budget)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of this test alone."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))


@pytest.fixture
def fresh_compiler(
    own_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Nothing compiled before, and plans, machine rates and compiled code of this test only."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that cost no time, except in slow tests."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(plan_cache, "solve", _planned_at_random)
