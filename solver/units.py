"""Bytes, times and budgets as people write them, and as lowtide prints them."""

from __future__ import annotations

import math
import re

from .errors import InputError

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
MOST_BUDGETS = 1000  # in one range
MOST_BYTES = 2.0**62  # more than any memory
MOST_DIGITS = 18  # of a whole number: what fits 63 bits
_FEW, _LARGE = 2**10, 2**20  # so few bytes for so large a step are meant otherwise
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
    if str(text).strip().lower() == "max":
        return peak_bytes
    value, unit = _value(
        text, "budget", "6GiB, 6e9 (bytes), 60% or max", "B, KiB, MiB, GiB, kB, MB, GB or %"
    )
    if unit == "%":
        return resident_bytes + _whole(text, (peak_bytes - resident_bytes) * value / 100.0)
    return _whole(text, value * _FACTORS[unit])


def parse_amount(text: str, what: str) -> int:
    """Bytes of an amount such as `64MiB`; `InputError` for shares, which mean nothing there.

    `what` is named in the error.
    """
    examples = "64MiB or 6e7 (bytes)"
    value, unit = _value(text, what, examples, "B, KiB, MiB, GiB, kB, MB or GB")
    if unit == "%":
        raise InputError(f"{what} {text!r} is not an amount: write it like {examples}")
    return _whole(text, value * _FACTORS[unit], what)


def _value(text: str | float, what: str, examples: str, units: str) -> tuple[float, str]:
    """The number and its unit, lower case."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        value, unit = float(text), ""
    else:
        match = _NUMBER.match(str(text))
        if match is None:
            raise InputError(f"{what} {text!r} is not an amount: write it like {examples}")
        value, unit = float(match.group(1)), match.group(2).lower()
    if not unit and 0 < value < 1:
        hint = f": write {100 * value:g}% for a share" if "%" in units else ""
        raise InputError(f"{what} {text!r} is less than a byte{hint}")
    if not value > 0 or value == float("inf"):
        raise InputError(f"{what} {text!r} must be more than zero and finite")
    if unit != "%" and unit not in _FACTORS:
        raise InputError(f"{what} {text!r} has the unknown unit {unit!r}: use {units}")
    return value, unit


def doubt(budget_bytes: int, peak_bytes: int) -> str:
    """What to ask about so few bytes for a step that takes `peak_bytes`; or nothing."""
    if budget_bytes > _FEW or peak_bytes < _LARGE:
        return ""
    return f"; {budget_bytes} B: did you mean {budget_bytes}% or {budget_bytes}MB?"


def whole_number(text: str) -> int | None:
    """The number that digits 0 to 9 write; None for anything else and for absurdly long ones."""
    if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    return None


def _whole(text: str | float, amount: float, what: str = "budget") -> int:
    """An amount as whole bytes."""
    if not amount < MOST_BYTES:
        raise InputError(f"{what} {text!r} is more than any memory")
    return int(amount)


def expand_budgets(text: str) -> list[str]:
    """Budgets of a list such as `30%,50%,4GiB`, ranges spelt out.

    `20%..80%:4` are four budgets evenly spread, `20%..80%:20%` the same by their distance. Both
    ends belong to a range and have the same unit.

    Raises
    ------
    InputError
        If a range cannot be understood.
    """
    found: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if ".." in part:
            found.extend(_range(part))
        elif part:
            found.append(part)
    return found


def _range(text: str) -> list[str]:
    ends, _, step = text.partition(":")
    matches = [_NUMBER.match(end) for end in ends.split("..")]
    wrong = InputError(
        f"{text!r} is not a range of budgets: write it like 20%..90%:8 (eight budgets) or"
        " 20%..90%:10% (one every 10%)"
    )
    by = _NUMBER.match(step)
    if len(matches) != 2 or by is None:
        raise wrong
    first, last = matches
    if first is None or last is None or first.group(2) != last.group(2):
        raise wrong
    low, high, unit = float(first.group(1)), float(last.group(1)), first.group(2)
    amount = float(by.group(1))
    if not max(low, high, amount) < MOST_BYTES:
        raise wrong
    if by.group(2) == "":
        count = int(amount)
        if count != amount or not 2 <= count <= MOST_BUDGETS or low == high:
            raise wrong
        values = [low + (high - low) * k / (count - 1) for k in range(count)]
    else:
        if by.group(2) != unit or not amount > 0 or abs(high - low) / amount > MOST_BUDGETS:
            raise wrong
        steps = int(abs(high - low) / amount + 1e-9)
        values = [low + (amount if high >= low else -amount) * k for k in range(steps + 1)]
    if unit.lower() in ("", "b"):
        return [f"{round(value)}{unit}" for value in values]
    return [f"{value:.5g}{unit}" for value in values]


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


def format_percent_up(fraction: float) -> str:
    """A fraction as percent, rounded up: as a budget it gives no less than the fraction does."""
    return f"{math.ceil(1000.0 * fraction) / 10.0:.1f}%"


def format_percent(fraction: float) -> str:
    """A fraction as percent with enough digits to tell plans apart: `3.398%`."""
    return f"{100.0 * fraction:.3f}%"


def format_more(extra: float) -> str:
    """Extra time as a fraction in words: `3.398% more`, `1.200% less`."""
    return f"{format_percent(abs(extra))} {'more' if extra >= 0 else 'less'}"
