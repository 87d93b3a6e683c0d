"""Time of each heuristic over the best known time, as in table 2 of Checkmate.

    python -m experiments.checkmate2020.ratios

Reads results.json of this study. A ratio is the geometric mean over the budgets that the method
meets; in brackets how many of those that `auto` meets. Beside it the paper's, for its own costs.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.commands.terminal import aligned

from ..papers.rows import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..papers.rows import Row

# Table 2 of the paper: (MobileNet, VGG16, U-Net).
PAPER = {
    "ap_sqrt_n": ("1.14", "1.28", "1.27"),
    "ap_greedy": ("1.07", "1.06", "1.23"),
    "revolve": ("7.07", "1.44", "-"),
    "checkmate_lp": ("1.06", "1.01", "1.03"),
}
ORDER = ("mobilenet", "vgg16", "unet")


def ratios(rows: Sequence[Row], subject: str) -> dict[str, tuple[float, int, int]]:
    """Method -> geometric mean of time over that of `auto`, budgets met, budgets `auto` meets."""
    here = [row for row in rows if row.subject.split(" ")[0] == subject]
    best = {r.budget: r.overhead for r in here if r.method == "auto" and r.overhead is not None}
    found = {}
    for method in dict.fromkeys(row.method for row in here):
        logs = [
            math.log((1 + row.overhead) / (1 + best[row.budget]))
            for row in here
            if row.method == method and row.overhead is not None and row.budget in best
        ]
        if logs:
            found[method] = (math.exp(sum(logs) / len(logs)), len(logs), len(best))
    return found


def table(rows: Sequence[Row]) -> str:
    """One line a method, one column a network."""
    by_subject = {subject: ratios(rows, subject) for subject in ORDER}
    lines = [["method", *(f"{name}" for name in ORDER), "paper: MobileNet, VGG16, U-Net"]]
    for method in dict.fromkeys(m for found in by_subject.values() for m in found):
        cells = []
        for name in ORDER:
            value = by_subject[name].get(method)
            cells.append("-" if value is None else f"{value[0]:.3f}x ({value[1]} of {value[2]})")
        lines.append([method, *cells, ", ".join(PAPER.get(method, ()))])
    return aligned(lines, right=(1, 2, 3))


def main() -> int:
    """Print the table."""
    found = read(Path(__file__).parent / "results.json")
    if found is None:
        print("run python -m experiments.checkmate2020 first", file=sys.stderr)
        return 2
    print(table(found.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
