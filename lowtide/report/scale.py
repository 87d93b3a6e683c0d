"""Amounts in the context of one graph: bytes, GiB and percent together, times, abstract units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..solver.schedule import Schedule
from ..solver.simulate import simulate
from ..solver.units import format_bytes, format_seconds, parse_budget

if TYPE_CHECKING:
    from ..solver.graph import Graph


@dataclass(frozen=True)
class Scale:
    """What 0% and 100% of a graph's memory are.

    Attributes
    ----------
    resident_bytes
        Bytes always in memory: 0%.
    base_peak_bytes
        Peak without recomputation, resident bytes included: 100%.
    base_time_ns
        Time of the step without recomputation.
    size_unit, time_unit
        `bytes` and `ns`; anything else is printed as plain numbers of that unit.
    gradient_bytes
        Gradients that the step makes and that stay; 0 if it adds them to existing ones.
    """

    resident_bytes: int
    base_peak_bytes: int
    base_time_ns: int
    size_unit: str = "bytes"
    time_unit: str = "ns"
    gradient_bytes: int = 0

    @classmethod
    def of(cls, graph: Graph) -> Scale:
        """The scale of `graph`."""
        base = simulate(graph, Schedule.keep_everything(graph))
        made = sum(
            graph.tensors[t].size_bytes
            for op in graph.ops
            if op.phase == "backward" and op.kind != "lowtide.backward"
            for t in op.outputs
            if graph.tensors[t].output
        )
        calibration = graph.calibration
        return cls(
            graph.resident_bytes,
            base.peak_bytes,
            base.time_ns if calibration is None else calibration.step_ns(base.time_ns),
            graph.size_unit,
            graph.time_unit,
            0 if graph.existing_gradient_bytes or graph.size_unit != "bytes" else made,
        )

    def budget(self, text: str | int | float) -> int:
        """Bytes of a budget as people write it; `InputError` if it is none."""
        return parse_budget(
            text, resident_bytes=self.resident_bytes, peak_bytes=self.base_peak_bytes
        )

    def percent(self, amount: int) -> float:
        """Where `amount` lies between the resident bytes (0) and the base peak (100)."""
        room = self.base_peak_bytes - self.resident_bytes
        return 100.0 * (amount - self.resident_bytes) / room if room > 0 else 100.0

    def size(self, amount: int) -> str:
        """`6.25 GiB`, or `1,234 elements` where sizes are not bytes."""
        if self.size_unit == "bytes":
            return format_bytes(amount)
        return f"{amount:,} {self.size_unit}"

    def memory(self, amount: int) -> str:
        """`6.25 GiB (6,710,886,400 B, 60.0%)`."""
        percent = f"{self.percent(amount):.1f}%"
        if amount < self.resident_bytes:
            percent = f"less than the {self.size(self.resident_bytes)} resident"
        elif amount > self.base_peak_bytes:
            percent = f"more than the {self.size(self.base_peak_bytes)} without recomputation"
        if self.size_unit == "bytes":
            return f"{format_bytes(amount)} ({amount:,} B, {percent})"
        return f"{amount:,} {self.size_unit} ({percent})"

    def time(self, amount: int) -> str:
        """`12.3 ms`, or a plain number where times are not nanoseconds."""
        if self.time_unit == "ns":
            return format_seconds(amount)
        return f"{amount:,} {self.time_unit}"

    def document(self, name: str, amount: int | None) -> dict[str, Any]:
        """The three ways to say `amount` as keys of a JSON document.

        Percentages begin at the resident bytes: what is less than them, such as a part of them,
        has none.
        """
        if amount is None:
            return {f"{name}_bytes": None, f"{name}_gib": None, f"{name}_percent": None}
        share = None if amount < self.resident_bytes else round(self.percent(amount), 4)
        return {
            f"{name}_bytes": amount,
            f"{name}_gib": round(amount / 2**30, 6),
            f"{name}_percent": share,
        }
