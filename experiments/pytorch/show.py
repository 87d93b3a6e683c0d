"""Lines, a table and pictures of compiled steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.report.figures import look, new_axes, save, style
from lowtide.solver.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .rows import Row

HEAD = (
    "model planner       setting      budget        peak   predicted  time ms overhead  gradient "
    "bits  compile s"
)
COLUMNS = (
    "model", "PyTorch's settings", "peak", "step, ms", "**lowtide** at that peak", "step, ms",
    "time against PyTorch's",
)  # fmt: skip


def line(row: Row) -> str:
    """One line about a compiled step."""
    if not row.peak_bytes:
        return (
            f"{row.model:6}{row.planner:9}{row.setting:12.8g}  no plan, smallest "
            f"{row.smallest_bytes}"
        )
    return (
        f"{row.model:6}{row.planner:9}{row.setting:12.8g}{row.budget_bytes:12}{row.peak_bytes:12}"
        f"{row.predicted_bytes:12}{row.fastest_ms:9.2f}{row.overhead:8.3f}"
        f"{row.gradient_error:10.1e} {row.same_bits!s:6}{row.compile_s:8.1f}"
    )


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each peak that PyTorch's settings have, the largest first, under `COLUMNS`."""
    lines = []
    for model in dict.fromkeys(row.model for row in rows):
        theirs = [row for row in rows if (row.model, row.planner) == (model, "torch")]
        ours = {
            int(row.setting): row for row in rows if (row.model, row.planner) == (model, "lowtide")
        }
        for peak in sorted({row.peak_bytes for row in theirs} | set(ours), reverse=True):
            same = [row for row in theirs if row.peak_bytes == peak]
            time = min((row.fastest_ms for row in same), default=None)
            settings = ", ".join(f"{row.setting:g}" for row in same)
            first = [model, settings or "none", format_bytes(peak) if same else "", _ms(time)]
            mine = ours.get(peak)
            if mine is None:
                lines.append([*first, "", "", ""])
            elif not mine.peak_bytes:
                lines.append([*first, f"cannot below {format_bytes(mine.smallest_bytes)}", "", ""])
            else:
                ratio = "" if time is None else f"{mine.fastest_ms / time:.3f}"
                if ratio and mine.program and mine.program in {row.program for row in same}:
                    ratio += ", the same program"
                found = format_bytes(mine.peak_bytes)
                lines.append([*first, found, _ms(mine.fastest_ms), ratio])
    return lines


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def picture(rows: Sequence[Row], model: str, path: Path) -> None:
    """Fastest step against measured peak; PyTorch's settings are joined in their order."""
    ax = new_axes(7.0, 4.5)
    style(ax)
    for planner, name in (("torch", "knapsack_dp"), ("lowtide", "auto")):
        here = [r for r in rows if (r.model, r.planner) == (model, planner) and r.peak_bytes]
        color, marker = look(name)
        x = [row.peak_bytes / 2**20 for row in here]
        y = [row.fastest_ms for row in here]
        label = "activation_memory_budget" if planner == "torch" else "lowtide"
        ax.plot(x, y, color=color, marker=marker, linewidth=1.2, alpha=0.8, label=label)
        for at, height, row in zip(x, y, here, strict=True):
            if planner == "torch":
                ax.annotate(f"{row.setting:g}", (at, height), fontsize=7, xytext=(3, 3),
                            textcoords="offset points")  # fmt: skip
    ax.set_xlabel("measured peak beyond parameters and inputs (MiB)")
    ax.set_ylabel("step (ms)")
    ax.set_title(f"{model}, compiled by inductor", fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    save(ax, path)
