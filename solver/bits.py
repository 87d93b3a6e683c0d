"""Sets of small numbers as the bits of an integer."""

from __future__ import annotations


def members(bits: int) -> list[int]:
    """The numbers in a bit set, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
