"""The rows as a table, with how often ours is below, equal or above."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lowtide.commands.terminal import aligned
from lowtide.solver.units import format_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cases import Figure
    from .measure import Row

HEADER = ["budget", "ours", "bound", "gap", "peak/budget", "s", "published", "ours is"]


def table(rows: Sequence[Row], skipped: Sequence[tuple[str, str]] = ()) -> str:
    """A block of lines for each instance, then the counts and what was left out."""
    cells = [
        [
            row.case.budget,
            _value(row, row.value) or row.status,
            _value(row, row.bound) + "*" * row.reordered,
            "" if row.gap is None else format_percent(row.gap) + "*" * row.reordered,
            _peak(row),
            f"{row.seconds:.1f}",
            "; ".join(_figure(row, figure) for figure in row.case.figures),
            _verdict(row),
        ]
        for row in rows
    ]
    first, *lines = aligned([HEADER, *cells], right=(1, 2, 3, 4, 5)).splitlines()
    text: list[str] = []
    instance = None
    for row, line in zip(rows, lines, strict=True):
        if row.case.instance != instance:
            instance = row.case.instance
            what = ": largest batch" if row.case.kind == "batch" else ""
            text += ["", f"{instance}, {row.ops:,} ops{what}", first]
        text.append(line)
    counts = Counter(row.verdict for row in rows)
    text += ["", f"{len(rows)} rows: " + ", ".join(f"{n} {word}" for word, n in counts.items())]
    if any(row.reordered for row in rows):
        text.append("* ours runs ops in another order; the bound speaks of the stored one only")
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped:
        reasons.setdefault(reason, []).append(name)
    text += [f"not compared, {reason}: {', '.join(names)}" for reason, names in reasons.items()]
    return "\n".join(text[1:])


def line(row: Row) -> str:
    """One row in a few words, for progress."""
    best = row.best
    known = "none published" if best is None else f"{best.method} {_value(row, best.value)}"
    ours = _value(row, row.value) or row.status
    return f"{ours} against {known}: {_verdict(row)}, {row.seconds:.1f} s"


def _value(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if row.case.kind == "batch" else format_percent(value)


def _peak(row: Row) -> str:
    """Share of the budget that the plan takes; what was reached where it could not be met."""
    if row.peak_bytes is None or not row.budget_bytes:
        return ""
    return f"{100 * row.peak_bytes / row.budget_bytes:.2f}%"


def _figure(row: Row, figure: Figure) -> str:
    value = "none" if figure.value is None else f"{100 * figure.value:.2f}%"
    if row.case.kind == "batch" and figure.value is not None:
        value = f"{figure.value:.0f}"
    facts = [figure.note] if figure.note else []
    if not figure.met:
        facts.append("over budget")
    if figure.bound is not None and figure.note != "optimal":
        facts.append(f"bound {100 * figure.bound:.2f}%")
    if figure.seconds is not None:
        facts.append(f"{figure.seconds:.0f} s")
    return f"{figure.method} {value}" + (f" ({', '.join(facts)})" if facts else "")


def _verdict(row: Row) -> str:
    word = row.verdict
    if row.case.kind == "batch":
        return {"below": "larger", "above": "smaller"}.get(word, word)
    return word
