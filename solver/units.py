"""Bytes, times and budgets as people write them, and as lowtide prints them."""

from __future__ import annotations

import re

from .errors import InputError

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*|%)\s*$")


def parse_budget(text: str | int | float, *, resident_bytes: int, peak_bytes: int) -> int:
    """Bytes of a budget such as `6GiB`, `6e9`, `60%` or `max`.

    A percentage p means resident + p% of (peak without recomputation - resident).
    Anything else is the whole device memory of the step.

    Parameters
    ----------
    text
        The budget; a number is taken as bytes.
    resident_bytes, peak_bytes
        Bytes always in memory, and the peak (resident included) without recomputation.

    Raises
    ------
    InputError
        If the text is not a positive amount of bytes or a percentage.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        value, unit = float(text), ""
    else:
        if str(text).strip().lower() == "max":
            return peak_bytes
        match = _NUMBER.match(str(text))
        if match is None:
            raise InputError(
                f"budget {text!r} is not an amount: write it like 6GiB, 6e9 (bytes), 60% or max"
            )
        value, unit = float(match.group(1)), match.group(2).lower()
    if not value > 0 or value == float("inf"):
        raise InputError(f"budget {text!r} must be more than zero and finite")
    if unit == "%":
        return resident_bytes + int((peak_bytes - resident_bytes) * value / 100.0)
    if unit not in _FACTORS:
        raise InputError(
            f"budget {text!r} has the unknown unit {unit!r}: use B, KiB, MiB, GiB, kB, MB, GB or %"
        )
    return int(value * _FACTORS[unit])


def format_bytes(amount: int | float) -> str:
    """Bytes in the largest binary unit that keeps the number above one: `6.25 GiB`."""
    size = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024.0:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024.0
    return f"{size:.2f} TiB"


def format_seconds(nanoseconds: int | float) -> str:
    """A time in nanoseconds as `12.3 ms`."""
    value = float(nanoseconds)
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} ns"


def format_percent(fraction: float) -> str:
    """A fraction as percent with enough digits to tell plans apart: `3.398%`."""
    return f"{100.0 * fraction:.3f}%"
