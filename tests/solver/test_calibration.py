"""From sums of op times to times of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.report.report import _facts
from lowtide.report.scale import Scale
from lowtide.solver.calibration import Calibration, Timed, digest_of
from lowtide.solver.errors import CheckError, InputError
from lowtide.solver.progress import describe
from lowtide.solver.schedule import Schedule
from tests.plans import plan_of, recomputing
from tests.solver.chains import mirrored_chain

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide import Graph, Plan
    from lowtide.solver.progress import Event

CURVE = Calibration(((100, 50), (200, 150), (400, 250)), plain_ns=60)


@pytest.mark.parametrize(
    ("op_ns", "step_ns"),
    [(100, 50), (150, 100), (200, 150), (300, 200), (400, 250), (700, 400), (0, 50)],
)
def test_between_points_it_interpolates(op_ns: int, step_ns: int) -> None:
    """On the line between two points; beyond the last, op times are added."""
    assert CURVE.step_ns(op_ns) == step_ns


def test_one_point_shifts() -> None:
    """Where nothing but the step without recomputation was measured, op times are added to it."""
    assert Calibration(((100, 150),)).step_ns(130) == 180


@given(
    st.lists(
        st.tuples(st.integers(1, 10**9), st.floats(1, 1e9)),
        min_size=1, max_size=8, unique_by=lambda point: point[0],
    )
)  # fmt: skip
def test_noise_never_makes_it_fall(measured: list[tuple[int, float]]) -> None:
    """The step without recomputation keeps its time; more op time never means a faster step."""
    found = Calibration.of(measured)
    first = min(measured)
    assert found.points[0] == (first[0], max(1, round(first[1])))
    sums = sorted({*(total for total, _ in measured), 2 * max(measured)[0]})
    times = [found.step_ns(total) for total in sums]
    assert times == sorted(times)


def test_rising_measurements_stay_as_they_are() -> None:
    """Only times that fall are pooled."""
    found = Calibration.of([(30, 9.0), (10, 4.0), (20, 7.0), (40, 8.0), (50, 20.0)], 3.0)
    assert found == Calibration(((10, 4), (20, 7), (30, 8), (40, 8), (50, 20)), 3)


def _with(*timed: tuple[int, int]) -> Calibration:
    plans = tuple(Timed(str(n), ops, step, step) for n, (ops, step) in enumerate(timed))
    return msgspec.structs.replace(CURVE, timed=plans)


def test_the_line_goes_through_plans_that_were_timed() -> None:
    """Points of other plans beside them give way where they would make it fall."""
    found = _with((150, 170), (300, 180))
    assert found.line == ((100, 50), (150, 170), (200, 170), (300, 180), (400, 250))
    assert _with((250, 260)).line == ((100, 50), (200, 150), (250, 260), (400, 260))
    assert _with((200, 140)).line == ((100, 50), (200, 140), (400, 250))


def test_timed_plans_that_contradict_each_other() -> None:
    """More op time in less time: the mean of both; the same op time twice: the mean as well."""
    assert _with((250, 210), (260, 200)).line[2:4] == ((250, 205), (260, 205))
    assert _with((250, 210), (250, 200)).step_ns(250) == 205
    # No plan is faster than the one that computes nothing again, or told to be as its sum says.
    assert _with((150, 40), (100, 70)).line[:2] == ((100, 50), (150, 50))


@given(st.lists(st.tuples(st.integers(50, 600), st.integers(1, 600)), max_size=8))
def test_timed_plans_never_make_it_fall(timed: list[tuple[int, int]]) -> None:
    """A bound stays a bound, whatever was measured."""
    found = _with(*timed)
    assert found.line[0] == CURVE.points[0]
    times = [found.step_ns(total) for total in range(50, 700)]
    assert times == sorted(times)


@pytest.mark.parametrize("points", [(), ((1, 0),), ((2, 5), (2, 6)), ((1, 5), (2, 4)), ((-1, 5),)])
def test_no_rising_line(points: tuple[tuple[int, int], ...]) -> None:
    """Points that are none are refused."""
    with pytest.raises(InputError, match="must be pairs"):
        Calibration(points)


def _calibrated() -> tuple[Graph, Plan]:
    graph = mirrored_chain(12)
    base = sum(op.time_ns for op in graph.ops)
    graph = msgspec.structs.replace(
        graph, calibration=Calibration(((base, 4 * base), (2 * base, 5 * base)), 2 * base)
    )
    return graph, lowtide.solve(graph, "60%", time_limit=5)


def test_overheads_are_of_steps(tmp_path: Path) -> None:
    """A plan, its file and its bound tell overheads by the measured steps."""
    graph, plan = _calibrated()
    base = plan.base_time_ns
    extra = plan.time_ns / base - 1
    assert extra > 0
    assert plan.overhead == pytest.approx(extra / 4, rel=1e-6)
    assert plan.step_ns == pytest.approx(4 * base + plan.time_ns - base, abs=1)
    assert plan.base_step_ns == Scale.of(graph).base_time_ns == 4 * base
    assert plan.overhead_over_plain is not None
    assert plan.overhead_over_plain == pytest.approx(plan.step_ns / (2 * base) - 1)
    assert plan.expected.endswith("than plain PyTorch")
    assert plan.bound_over_plain is not None
    assert plan.bound_over_plain <= plan.overhead_over_plain
    assert plan.overhead_bound is not None
    assert 0 <= plan.overhead_bound <= plan.overhead
    lowtide.write_graph(graph, tmp_path / "a.graph.json")
    lowtide.write_plan(plan, tmp_path / "a.plan.json")
    assert lowtide.read_graph(tmp_path / "a.graph.json").calibration == graph.calibration
    read = lowtide.read_plan(tmp_path / "a.plan.json")
    assert read.overhead == plan.overhead
    lowtide.check(graph, read)


def test_the_same_plan_is_best() -> None:
    """A calibration changes what a plan is said to cost, not which plan is made."""
    graph, plan = _calibrated()
    bare = msgspec.structs.replace(graph, calibration=None)
    same = lowtide.solve(bare, plan.budget_bytes, time_limit=5)
    assert (same.time_ns, same.lower_bound_ns, same.status) == (
        plan.time_ns, plan.lower_bound_ns, plan.status,
    )  # fmt: skip
    assert same.overhead == same.time_ns / same.base_time_ns - 1
    assert same.overhead_over_plain is None
    assert same.expected.endswith("more than without recomputation")


class _News:
    """Keeps what a solve tells."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def update(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)


def test_progress_speaks_as_the_plan_does() -> None:
    """The last news of a solve has the overhead, the bound and the gap of its plan."""
    graph, _ = _calibrated()
    news = _News()
    plan = lowtide.solve(graph, "60%", time_limit=5, progress=news)
    assert plan.gap is not None
    assert plan.overhead_bound is not None
    best = [event for event in news.events if event.incumbent_ns == plan.time_ns]
    assert best
    assert all(f"overhead {plan.overhead:.3%}" in describe(event) for event in best)
    last = describe(news.events[-1])
    assert f"bound {plan.overhead_bound:.3%}  gap {plan.gap:.3%}" in last
    assert plan.overhead != pytest.approx(plan.time_ns / plan.base_time_ns - 1, rel=0.5)


def test_overhead_bound_and_gap_agree() -> None:
    """Gap, overhead and bound of one plan are told by the same steps."""
    graph = mirrored_chain(4)
    base = sum(op.time_ns for op in graph.ops)
    plan = plan_of(
        graph, recomputing(graph), lower_bound_ns=base,
        calibration=Calibration(((base, 4 * base), (2 * base, 5 * base))),
    )  # fmt: skip
    assert plan.gap == pytest.approx(plan.overhead / (1 + plan.overhead))
    assert plan.gap == pytest.approx((plan.step_ns - 4 * base) / plan.step_ns)
    assert plan.step_bound_ns == 4 * base
    facts = dict(_facts(graph, plan, Scale.of(graph)))
    assert facts["Lower bound on the step time"].startswith(Scale.of(graph).time(4 * base))


def test_a_plan_that_was_timed_says_so() -> None:
    """Predicted and measured stay apart; another plan has no measured time."""
    graph, plan = _calibrated()
    calibration = graph.calibration
    assert calibration is not None
    assert plan.measured_overhead is None
    assert "measured" not in plan.summary
    own = Timed(
        digest_of(plan.steps),
        plan.time_ns,
        9 * plan.base_time_ns // 2,
        33 * plan.base_time_ns // 8,
    )
    calibration = msgspec.structs.replace(calibration, timed=(own,))
    graph = msgspec.structs.replace(graph, calibration=calibration)
    timed = msgspec.structs.replace(plan, calibration=calibration)
    lowtide.check(graph, timed)
    assert timed.overhead == pytest.approx(0.125)
    assert timed.measured_overhead == pytest.approx(0.03125)
    assert timed.measured_over_plain == pytest.approx(1.0625)
    assert "125.000% more than plain PyTorch (measured 106.250% more)" in timed.summary
    other = msgspec.structs.replace(timed, steps=timed.steps[:-1])
    assert other.measured_step_ns is None


def test_another_calibration_is_found_out() -> None:
    """A plan may not tell its overhead by another curve, nor a graph by one of other op times."""
    graph, _ = _calibrated()
    plan = plan_of(graph, Schedule.keep_everything(graph))
    with pytest.raises(CheckError, match=r"another calibration .*peak, .* are right: solve again"):
        lowtide.check(graph, plan)
    wrong = msgspec.structs.replace(plan, peak_bytes=plan.peak_bytes - 1)
    with pytest.raises(CheckError, match="claims a peak of"):
        lowtide.check(graph, wrong)
    lowtide.check(graph, msgspec.structs.replace(plan, calibration=graph.calibration))
    with pytest.raises(InputError, match="of other op times"):
        msgspec.structs.replace(graph, calibration=Calibration(((1, 1),)))
