"""Budgets as people write them, and amounts as they are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.solver.errors import InputError
from lowtide.solver.units import (
    doubt,
    expand_budgets,
    format_bytes,
    format_percent,
    format_seconds,
    parse_budget,
)


def parse(text: str | int | float) -> int:
    """Budget with 1000 resident bytes and a peak of 3000."""
    return parse_budget(text, resident_bytes=1000, peak_bytes=3000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6GiB", 6 * 2**30),
        ("6 gib", 6 * 2**30),
        ("1.5MiB", 3 * 2**19),
        ("6GB", 6 * 10**9),
        ("2kB", 2000),
        ("3KiB", 3072),
        ("1TiB", 2**40),
        ("1TB", 10**12),
        ("6e9", 6 * 10**9),
        ("6E9", 6 * 10**9),
        ("1.5e3 B", 1500),
        (".5KiB", 512),
        ("2048", 2048),
        (2048, 2048),
        (2048.7, 2048),
        ("  7 B ", 7),
        ("100%", 3000),
        ("60%", 2200),
        ("60 %", 2200),
        ("0.05%", 1001),
        ("150%", 4000),
        ("max", 3000),
        (" MAX ", 3000),
    ],
)
def test_budgets(text: str | int | float, expected: int) -> None:
    """Bytes in any unit, and percentages of what can be saved above the resident bytes."""
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "GiB", "six", "6 GiB GiB", "6,5GiB", "-3", "-3GiB", "0", "0%", "6XiB", "6%%", "1e999",
        "nan", "inf", 0, -1, float("nan"), float("inf"), True, None,
    ],
)  # fmt: skip
def test_refused_budgets(text: str | float) -> None:
    """What is not a positive amount is refused in one line that quotes it."""
    with pytest.raises(InputError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert repr(text) in str(caught.value)


@given(st.integers(1, 2**50), st.integers(0, 2**50), st.floats(0.01, 100))
def test_percentages_lie_between_resident_and_peak(
    saved: int, resident: int, percent: float
) -> None:
    """A percentage up to 100 never leaves the range that it is relative to."""
    budget = parse_budget(f"{percent}%", resident_bytes=resident, peak_bytes=resident + saved)
    assert resident <= budget <= resident + saved


@given(st.integers(1, 2**40))
def test_bytes_mean_themselves(amount: int) -> None:
    """A number without unit is bytes, as text and as number."""
    assert parse(amount) == amount
    assert parse(str(amount)) == amount
    assert parse(f"{amount}B") == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (6.25 * 2**30, "6.25 GiB"),
        (2**40, "1.00 TiB"),
        (5000 * 2**40, "5000.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_format_bytes(amount: float, text: str) -> None:
    """The largest binary unit that keeps the number at one or above."""
    assert format_bytes(amount) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.5 us"), (12_300_000, "12.3 ms"), (2.5e9, "2.5 s")],
)
def test_format_seconds(nanoseconds: float, text: str) -> None:
    """Times in the unit that fits."""
    assert format_seconds(nanoseconds) == text


def test_format_percent() -> None:
    """Three digits after the point, so that plans can be told apart."""
    assert format_percent(0.033984) == "3.398%"


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("30%, 50%,4GiB", ["30%", "50%", "4GiB"]),
        ("20%..80%:4", ["20%", "40%", "60%", "80%"]),
        ("80%..20%:3", ["80%", "50%", "20%"]),
        ("20%..90%:30%", ["20%", "50%", "80%"]),
        ("90%..20%:30%", ["90%", "60%", "30%"]),
        ("1GiB..2GiB:0.5GiB,max", ["1GiB", "1.5GiB", "2GiB", "max"]),
        ("10..20:2", ["10", "20"]),
        ("", []),
    ],
)
def test_ranges_of_budgets(text: str, budgets: list[str]) -> None:
    """Lists are taken apart, ranges spelt out by number or by distance."""
    assert expand_budgets(text) == budgets


@pytest.mark.parametrize(
    "text",
    ["20%..90%", "20%..4GiB:3", "20%..90%:1", "20%..90%:1.5", "20%..90%:1GiB", "20%..90%:0%",
     "20%..90%:1e9", "..90%:3", "20%..50%..90%:3", "max..20%:3", "50%..50%:2"],
)  # fmt: skip
def test_wrong_ranges_are_refused(text: str) -> None:
    """The message shows how ranges are written."""
    with pytest.raises(InputError, match="eight budgets"):
        expand_budgets(text)


@pytest.mark.parametrize("text", ["1e308%", "1e305GiB", "1e30", "9e999"])
def test_absurd_budgets_are_refused(text: str) -> None:
    """More bytes than any memory has are one clear line, not an overflow."""
    with pytest.raises(InputError, match="budget"):
        parse_budget(text, resident_bytes=1, peak_bytes=1000)


def test_absurd_ranges_are_refused() -> None:
    """A range without finite ends is no range."""
    with pytest.raises(InputError, match="not a range"):
        expand_budgets("1e308..1e309:3")


def test_a_few_bytes_of_a_large_step_are_doubted() -> None:
    """A unit was forgotten; a tiny graph really takes so little."""
    assert doubt(50, 10**7) == "; 50 B: did you mean 50% or 50MB?"
    assert doubt(50, 10**4) == doubt(10**4, 10**7) == ""
