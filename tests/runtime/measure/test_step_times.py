"""What timed rounds tell."""

from __future__ import annotations

import random

import pytest

from lowtide.runtime.measure.step_times import NoisyError, calibration_of

OP_NS = [10**9, 11 * 10**8, 2 * 10**9]


def _rounds(factor: float, noise: float, seed: int, count: int = 20) -> list[float]:
    draw = random.Random(seed)
    return [factor * (1.0 + draw.gauss(0.0, noise)) for _ in range(count)]


def test_steady_steps_count_as_measured() -> None:
    """Much extra time, measured well, is taken nearly as it is; little is weighed."""
    base = _rounds(1.0, 0.001, 0)
    found = calibration_of(
        OP_NS, [base, _rounds(1.05, 0.001, 1), _rounds(1.8, 0.001, 2)], base, _rounds(1.2, 0.001, 3)
    )
    (first, whole), (_, middle), (last, tight) = found.points
    assert (first, last) == (OP_NS[0], OP_NS[2])
    assert whole == pytest.approx(1e9, rel=2e-3)
    assert tight == pytest.approx(1.8e9, rel=5e-3)
    assert 1.05e9 < middle < 1.06e9  # op times say 1.1
    assert found.plain_ns == pytest.approx(1.2e9, rel=2e-3)


def test_noise_is_weighed_against_op_times() -> None:
    """What cannot be told from chance stays near the op times."""
    base = _rounds(1.0, 0.03, 0)
    seconds = [base, _rounds(0.98, 0.03, 1), _rounds(1.8, 0.03, 2)]
    points = calibration_of([10**9, 102 * 10**7, 2 * 10**9], seconds, base).points
    assert 1.005 < points[1][1] / points[0][1] < 1.02
    assert points[2][1] / points[0][1] == pytest.approx(1.8, abs=0.05)


def test_a_busy_machine_tells_nothing() -> None:
    """Steps that vary by half of their time are refused."""
    base = _rounds(1.0, 0.3, 0)
    with pytest.raises(NoisyError, match=r"vary by \d+% from run to run"):
        calibration_of(OP_NS, [base, _rounds(1.1, 0.3, 1), _rounds(1.8, 0.3, 2)], base)


def test_nothing_that_can_be_saved() -> None:
    """One plan is one point."""
    assert len(calibration_of(OP_NS[:1], [[1.0, 1.0]], [1.0, 1.0]).points) == 1
