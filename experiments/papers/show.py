"""Tables and pictures of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.commands.terminal import aligned
from lowtide.report.cut import mark_cut, top_of
from lowtide.report.figures import look, new_axes, save, style
from lowtide.report.words import label_of
from lowtide.solver.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .rows import Row


def table(rows: Sequence[Row]) -> str:
    """A line for each subject and method, a column for each budget."""
    blocks = []
    for subject in dict.fromkeys(row.subject for row in rows):
        here = [row for row in rows if row.subject == subject]
        budgets = list(dict.fromkeys((row.budget, row.budget_bytes) for row in here))
        head = [f"{subject} ({here[0].ops} ops)"]
        head += [f"{text} ({format_bytes(amount)})" for text, amount in budgets]
        lines = [head]
        for method in dict.fromkeys(row.method for row in here):
            found = {row.budget: row for row in here if row.method == method}
            lines.append([method, *(cell(found.get(text)) for text, _ in budgets)])
        bounds = [
            max((row.bound for row in here if row.budget == text and row.bound is not None),
                default=None)
            for text, _ in budgets
        ]  # fmt: skip
        if any(bound is not None for bound in bounds):
            lines.append(["lower bound", *("" if b is None else f"{100 * b:.2f}%" for b in bounds)])
        blocks.append(aligned(lines, right=range(1, len(head))))
    return "\n\n".join(blocks)


def cell(row: Row | None) -> str:
    """Overhead, or why there is none; `*` marks a proven optimum."""
    if row is None:
        return ""
    words = {"infeasible": "cannot", "no plan in time": "no time", "not applicable": "n/a"}
    text = words.get(row.status, row.status)
    if row.overhead is not None:
        text = f"{100 * row.overhead:.2f}%{'*' if row.status == 'optimal' else ''}"
    return f"{text} [{row.published}]" if row.published else text


def picture(rows: Sequence[Row], subject: str, path: Path) -> None:
    """Overhead against budget, a line for each method; proven optima are filled."""
    here = [row for row in rows if row.subject == subject and row.overhead is not None]
    ax = new_axes(8.5, 5.0)
    style(ax)
    points = [(r.method, r.budget_bytes / 2**30, 100 * (r.overhead or 0.0)) for r in here]
    top = top_of([(method, height) for method, _, height in points])
    for method in dict.fromkeys(row.method for row in here):
        found = sorted((r for r in here if r.method == method), key=lambda r: r.budget_bytes)
        color, marker = look(method)
        x = [row.budget_bytes / 2**30 for row in found]
        y = [100 * (row.overhead or 0.0) for row in found]
        ax.plot(x, y, color=color, linewidth=1.2, alpha=0.7, label=label_of(method))
        for at, height, row in zip(x, y, found, strict=True):
            if top is not None and height > top:
                continue
            face = color if row.status == "optimal" else "white"
            ax.plot([at], [height], marker, color=color, markerfacecolor=face, markersize=6)
    ax.set_xlabel("budget (GiB)")
    ax.set_ylabel("overhead (% of step time)")
    ax.set_title(subject, fontsize=10)
    ax.set_ylim(bottom=0)
    if top is not None:
        mark_cut(ax, points, top)
    if here:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    save(ax, path)
