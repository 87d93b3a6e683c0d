"""How many stages a backward has, and where they end."""

from __future__ import annotations

import pytest

from lowtide.frontends.torch.stages import MAX_STAGES, stage_count, stage_ends


@pytest.mark.parametrize(
    ("gradient_bytes", "step_ns", "expected"),
    [
        (10_000, 0, 1),
        (10_000_000_000, 0, MAX_STAGES),
        (10_000_000_000, 1_000_000, 1),
        (10_000_000_000, 10**9, MAX_STAGES),
        (1024 * 1024, 10**9, 4),
    ],
)
def test_stage_count(gradient_bytes: int, step_ns: int, expected: int) -> None:
    """Few gradient bytes or a short step get one stage, large ones the most."""
    assert stage_count(gradient_bytes, step_ns) == expected


def test_ends_share_the_bytes() -> None:
    """Stages end when their share of the bytes is final, and the last one where the last is."""
    assert stage_ends([1, 2, 3, 4], [10, 10, 10, 10], 2) == [2, 4]
    assert stage_ends([4, 3, 2, 1], [10, 10, 10, 10], 4) == [1, 2, 3, 4]
    assert stage_ends([1, 2, 3, 4], [1, 1, 100, 1], 2) == [3, 4]
    assert stage_ends([1, 2], [10, 10], 1) == [2]


def test_gradients_of_one_step_are_not_split() -> None:
    """Gradients that are final at the same place leave in the same stage."""
    assert stage_ends([5, 5, 5, 7], [10, 10, 10, 10], 4) == [5, 7]


def test_nothing_to_hand_over() -> None:
    """Without gradients there is no stage end."""
    assert stage_ends([], [], 4) == []
