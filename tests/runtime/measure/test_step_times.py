"""What timed rounds tell."""

from __future__ import annotations

import random

import pytest

from lowtide.runtime.measure.step_times import MOST_TIMED, NoisyError, Rounds, calibration_of
from lowtide.solver.calibration import Calibration, Timed

OP_NS = [10**9, 11 * 10**8, 2 * 10**9]


def _rounds(factor: float, noise: float, seed: int, count: int = 20) -> list[float]:
    draw = random.Random(seed)
    return [factor * (1.0 + draw.gauss(0.0, noise)) for _ in range(count)]


def test_steady_steps_count_as_measured() -> None:
    """Much extra time, measured well, is taken nearly as it is; little is weighed."""
    base = _rounds(1.0, 0.001, 0)
    rounds = [
        Rounds(OP_NS[1], _rounds(1.05, 0.001, 1), base),
        Rounds(OP_NS[2], _rounds(1.8, 0.001, 2), base),
    ]
    found = calibration_of(OP_NS[0], rounds, base, _rounds(1.2, 0.001, 3))
    (first, whole), (_, middle), (last, tight) = found.points
    assert (first, last) == (OP_NS[0], OP_NS[2])
    assert whole == pytest.approx(1e9, rel=2e-3)
    assert tight == pytest.approx(1.8e9, rel=5e-3)
    assert 1.05e9 < middle < 1.06e9  # op times say 1.1
    assert found.plain_ns == pytest.approx(1.2e9, rel=2e-3)


def test_noise_is_weighed_against_op_times() -> None:
    """What cannot be told from chance stays near the op times."""
    base = _rounds(1.0, 0.03, 0)
    rounds = [
        Rounds(102 * 10**7, _rounds(0.98, 0.03, 1), base),
        Rounds(2 * 10**9, _rounds(1.8, 0.03, 2), base),
    ]
    points = calibration_of(10**9, rounds, base).points
    assert 1.005 < points[1][1] / points[0][1] < 1.02
    assert points[2][1] / points[0][1] == pytest.approx(1.8, abs=0.05)


def test_a_busy_machine_tells_nothing() -> None:
    """Steps that vary by half of their time are refused."""
    base = _rounds(1.0, 0.3, 0)
    with pytest.raises(NoisyError, match=r"vary by \d+% from run to run"):
        calibration_of(OP_NS[0], [Rounds(OP_NS[1], _rounds(1.1, 0.3, 1), base)], base)


def test_noise_is_a_part_of_the_step_itself() -> None:
    """Fifty times as long as the others, and as steady: what all of them tell is taken."""
    base = _rounds(1.0, 0.01, 0)
    rounds = [Rounds(40 * 10**9, _rounds(50.0, 0.02, 1), base)]
    points = calibration_of(OP_NS[0], rounds, base).points
    assert points[1][1] / points[0][1] == pytest.approx(50.0, rel=0.02)
    with pytest.raises(NoisyError, match=r"vary by [34]\d% from run to run"):
        calibration_of(OP_NS[0], [Rounds(40 * 10**9, _rounds(50.0, 0.3, 1), base)], base)


def test_nothing_that_can_be_saved() -> None:
    """One plan is one point."""
    assert len(calibration_of(OP_NS[0], [], [1.0, 1.0]).points) == 1


def test_each_plan_against_the_steps_beside_it() -> None:
    """A clock that is half as fast in the rounds of one plan does not make it slower."""
    base, slow = [1.0] * 9, [2.0] * 9
    rounds = [Rounds(OP_NS[1], [1.1] * 9, base), Rounds(OP_NS[2], [4.0] * 9, slow)]
    points = calibration_of(OP_NS[0], rounds, base + slow).points
    assert points[2][1] / points[0][1] == pytest.approx(2.0, rel=1e-3)


def test_plans_that_were_asked_for_join_what_was_known() -> None:
    """With their own measured time; of plain PyTorch's two the mean; the same plan once."""
    known = Calibration(((10**9, 2 * 10**9), (2 * 10**9, 4 * 10**9)), 10**9, (_timed(0),))
    base, plain = _rounds(1.0, 0.001, 0), _rounds(0.6, 0.001, 1)
    rounds = [Rounds(15 * 10**8, _rounds(1.4, 0.001, 2), base, "b")]
    found = calibration_of(10**9, rounds, base, plain, known)
    assert found.points == known.points
    assert found.plain_ns == pytest.approx(11 * 10**8, rel=1e-3)
    assert [one.plan for one in found.timed] == ["0", "b"]
    assert found.timed[1].measured_ns == pytest.approx(28 * 10**8, rel=1e-3)
    assert found.timed[1].step_ns == pytest.approx(28 * 10**8, rel=2e-3)
    assert calibration_of(10**9, rounds, base, None, found).timed == found.timed
    assert calibration_of(10**9, rounds, base, None, found).plain_ns == found.plain_ns


def test_old_plans_are_forgotten() -> None:
    """A calibration stays small: the latest plans stay."""
    many = tuple(_timed(number) for number in range(MOST_TIMED))
    known = Calibration(((10**9, 10**9),), timed=many)
    found = calibration_of(
        10**9, [Rounds(OP_NS[2], [2.0] * 9, [1.0] * 9, "b")], [1.0] * 9, None, known
    )
    assert [one.plan for one in found.timed] == [*map(str, range(1, MOST_TIMED)), "b"]


def _timed(number: int) -> Timed:
    return Timed(str(number), 11 * 10**8 + number, 3 * 10**9, 3 * 10**9)
