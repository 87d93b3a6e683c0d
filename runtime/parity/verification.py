"""What a comparison of replayed and plain training found, for people and for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...solver.units import format_bytes, format_more, format_seconds

if TYPE_CHECKING:
    from ..wiring import Planned


@dataclass(frozen=True, slots=True)
class Item:
    """One comparison: what, at which step, and how it differs (empty if it does not)."""

    step: int
    kind: str
    name: str
    difference: str

    @property
    def equal(self) -> bool:
        """Whether both runs agree in every bit."""
        return not self.difference

    def __str__(self) -> str:
        words = " ".join(part for part in (self.kind, self.name) if part)
        return f"step {self.step}: {words}: {self.difference or 'equal'}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Peaks and times of one of the `steps`, which are of so many `kinds` of call.

    Bytes are -1 and seconds nan if nothing was measured.
    """

    step: int = 0
    steps: int = 1
    kinds: int = 1
    plain_peak_bytes: int = -1
    replay_peak_bytes: int = -1
    plain_seconds: float = math.nan
    replay_seconds: float = math.nan


@dataclass(frozen=True)
class Verification:
    """Outcome of `verify`; `str()` of it is a report.

    Attributes
    ----------
    items
        One per loss, other output, gradient, buffer, parameter and generator state of each step.
    plain_peak_bytes, replay_peak_bytes
        Measured peak of one step (forward and backward), beyond what was allocated before; -1 if
        not measured. On gradients of an earlier step if the plan is for that.
    predicted_peak_bytes
        The same as the plan of that batch predicts it: peak minus resident bytes; -1 if it has no
        plan and runs plain.
    plain_seconds, replay_seconds
        Median time of a step; nan if not measured.
    resident_bytes
        Bytes always in memory, which the plan's peak and budget count.
    budget_bytes
        That plan's budget, resident bytes included; -1 without a plan.
    predicted_overhead
        Extra time over the step that computes nothing again, as that plan predicts it: 0.2 is 20%;
        nan without a plan.
    expected
        The predicted time in words, over plain PyTorch where that was measured; empty without a
        plan.
    step, steps, kinds
        Which batch, counted from 0, these are of: the one with the largest plain peak, or the first
        if nothing was measured; how many batches there were, and kinds of calls among them.
    """

    items: tuple[Item, ...]
    plain_peak_bytes: int
    replay_peak_bytes: int
    predicted_peak_bytes: int
    plain_seconds: float
    replay_seconds: float
    resident_bytes: int = 0
    budget_bytes: int = -1
    predicted_overhead: float = math.nan
    expected: str = ""
    step: int = 0
    steps: int = 1
    kinds: int = 1

    @property
    def ok(self) -> bool:
        """Whether everything is equal in every bit."""
        return all(item.equal for item in self.items)

    @property
    def first_difference(self) -> str | None:
        """The first difference in words, None if there is none."""
        return next((str(item) for item in self.items if not item.equal), None)

    @property
    def measured_overhead(self) -> float:
        """Extra time over the plain step, as measured; nan if it was not."""
        return (
            self.replay_seconds / self.plain_seconds - 1.0 if self.plain_seconds > 0 else math.nan
        )

    @property
    def within_budget(self) -> bool:
        """Whether the measured peak is within the budget; true if it was not measured."""
        return (
            self.replay_peak_bytes + self.resident_bytes <= self.budget_bytes or not self.measured
        )

    @property
    def measured(self) -> bool:
        """Whether peaks and times were measured."""
        return self.replay_peak_bytes >= 0

    def table(self) -> list[tuple[str, int, int]]:
        """Rows (kind, number compared, number equal)."""
        counts: dict[str, list[int]] = {}
        for item in self.items:
            row = counts.setdefault(item.kind, [0, 0])
            row[0] += 1
            row[1] += item.equal
        return [(kind, count, equal) for kind, (count, equal) in counts.items()]

    def document(self) -> dict[str, Any]:
        """Everything as a JSON document; what was not measured is null."""
        return {
            "equal": self.ok,
            "compared": [
                {"kind": kind, "count": count, "equal": equal}
                for kind, count, equal in self.table()
            ],
            "first_difference": self.first_difference,
            "differences": [
                {"step": i.step, "kind": i.kind, "name": i.name, "difference": i.difference}
                for i in self.items
                if not i.equal
            ],
            "step": self.step,
            "steps": self.steps,
            "kinds": self.kinds,
            "resident_bytes": self.resident_bytes,
            "budget_bytes": None if self.budget_bytes < 0 else self.budget_bytes,
            "predicted_peak_bytes": self._whole(self.predicted_peak_bytes),
            "measured_peak_bytes": self._whole(self.replay_peak_bytes),
            "plain_peak_bytes": self._whole(self.plain_peak_bytes),
            "seconds": _number(self.replay_seconds),
            "plain_seconds": _number(self.plain_seconds),
            "predicted_overhead": _number(self.predicted_overhead),
            "measured_overhead": _number(self.measured_overhead),
        }

    def __str__(self) -> str:
        rows = [("compared", "number", "equal in every bit")]
        rows += [(kind, str(count), str(equal)) for kind, count, equal in self.table()]
        lines = _aligned(rows)
        lines += ["", f"first difference  {self.first_difference or 'none'}"]
        if not self.measured:
            return "\n".join(lines)
        memory = [
            ("peak, plain", self._whole(self.plain_peak_bytes), ""),
            ("peak, replayed", self._whole(self.replay_peak_bytes), self._deviation()),
            ("peak, predicted", self._whole(self.predicted_peak_bytes), ""),
            (
                "budget",
                None if self.budget_bytes < 0 else self.budget_bytes,
                "" if self.within_budget else "exceeded",
            ),
        ]
        time = [
            ("step, plain", format_seconds(self.plain_seconds * 1e9), ""),
            ("step, replayed", format_seconds(self.replay_seconds * 1e9), self._extra()),
        ]
        which = [("measured", f"batch {self.step + 1} of {self.steps}", self._choice())]
        facts = [
            (name, "no plan" if b is None else f"{format_bytes(b)} ({b:,} B)", note)
            for name, b, note in memory
        ]
        return "\n".join([*lines, *_aligned([*which, *facts, *time])])

    def _whole(self, beyond: int) -> int | None:
        """Bytes with the resident ones; None for what is unknown."""
        return None if beyond < 0 else self.resident_bytes + beyond

    def _choice(self) -> str:
        return f"largest plain peak of {self.kinds} kinds of call" if self.kinds > 1 else ""

    def _deviation(self) -> str:
        if self.predicted_peak_bytes < 0:
            return ""
        off = self.replay_peak_bytes - self.predicted_peak_bytes
        return "as predicted" if off == 0 else f"{off:+,} B from the prediction"

    def _extra(self) -> str:
        measured = self.measured_overhead
        words = "median"
        if not math.isnan(measured):
            words += f", {format_more(measured)}"
        if self.expected:
            words += f"; predicted {self.expected}"
        return words


def verification(items: list[Item], measured: Measured, planned: Planned | None) -> Verification:
    """Put together: `planned` is what the measured step runs by."""
    known: dict[str, Any] = {}
    predicted = -1
    if planned is not None:
        resident = planned.captured.graph.resident_bytes
        predicted = planned.peak_bytes - resident
        known = {
            "resident_bytes": resident,
            "budget_bytes": planned.plan.budget_bytes,
            "predicted_overhead": planned.plan.overhead,
            "expected": planned.plan.expected,
        }
    return Verification(
        tuple(items),
        measured.plain_peak_bytes,
        measured.replay_peak_bytes,
        predicted,
        measured.plain_seconds,
        measured.replay_seconds,
        step=measured.step,
        steps=measured.steps,
        kinds=measured.kinds,
        **known,
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _aligned(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
