"""Proven optima on public instances, where the folder that LOWTIDE_INSTANCES names has them."""

from __future__ import annotations

import pytest

from experiments.published.folder import instances_folder
from lowtide.frontends.instances import read_instance
from lowtide.solver.plan import Status
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import solve

FOLDER = instances_folder()


@pytest.mark.parametrize(
    ("name", "budget", "percent"),
    [
        ("monet_vgg16_176_ckm", "8GiB", 4.157),
        ("monet_vgg16_176_ckm", "9GiB", 2.347),
        ("monet_vgg16_176_ckm", "10GiB", 2.028),
        ("monet_un_11_ckm", "10GiB", 2.412),
        pytest.param("monet_resnet50_184_ckm", "8GiB", 8.105, marks=pytest.mark.slow),
    ],
)
def test_published_instances_are_solved_to_proven_optimality(
    name: str, budget: str, percent: float
) -> None:
    """Where Gurobi proved an optimum, or found none in a day, `auto` proves one."""
    path = FOLDER / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {FOLDER}")
    plan = solve(read_instance(path), budget, gap=2e-4)
    assert plan.status == Status.OPTIMAL
    # Within the asked gap of the optimum, in percent of the step.
    assert percent - 0.021 <= 100 * plan.overhead <= percent + 0.021


@pytest.mark.slow
def test_retention_intervals_and_integer_programs_agree_on_fcn8() -> None:
    """Moccasin's model in CP-SAT has the optimum that `auto` proves, 0.136% at 80% of the peak."""
    path = FOLDER / "moccasin_fcn_8_vgg_MLSys_32_416_608_3_train.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {FOLDER}")
    graph = read_instance(path)
    budget = simulate(graph, Schedule.keep_everything(graph)).peak_bytes * 80 // 100
    best = solve(graph, budget, gap=1e-6)
    assert best.status == Status.OPTIMAL
    assert round(100 * best.overhead, 3) == 0.136
    other = solve(graph, budget, method="moccasin", time_limit=600.0)
    assert other.time_ns == best.time_ns
