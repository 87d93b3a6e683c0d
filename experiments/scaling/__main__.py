"""Run it: `python -m experiments.scaling [--only residual ...] [--most N] [--gap G] [--json]`.

Residual networks with batch norm up to 1200 layers (more than 10,000 ops) are planned to memory
that grows with the square root of their depth, transformers to half of theirs; generated graphs,
times by roofline, one thread, until the plan is proven within the gap. results.json beside this
file holds the rows; those of families that were not run again stay. Chen et al. (2016) report a
1000-layer ResNet that goes from 48 to 7 GB for 30% more time.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ..papers.keep import keep_list
from .study import FAMILIES, Row, exponent, measure

MIB = 1 << 20
COLUMNS = ("network", "depth", "ops", "MiB plain", "MiB planned", "less by", "overhead", "gap",
           "first plan s", "CPU s", "wall s", "sqrt_n", "per_block")  # fmt: skip


def show(rows: list[Row]) -> None:
    """Print the table."""
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "network" else "right")
    for row in rows:
        rivals = ["-" if it is None else f"{it:.2%}" for it in row.rivals.values()]
        table.add_row(
            row.family,
            str(row.depth),
            str(row.ops),
            f"{row.peak_bytes / MIB:.0f}",
            f"{row.planned_bytes / MIB:.0f}",
            f"{row.peak_bytes / row.planned_bytes:.1f}x",
            f"{row.overhead:.2%}",
            f"{row.gap:.2%}",
            f"{row.first_seconds:.1f}",
            f"{row.cpu_seconds:.1f}",
            f"{row.wall_seconds:.1f}",
            *rivals,
        )
    Console(width=130).print(table)


def main(argv: list[str] | None = None) -> int:
    """Measure the families that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.scaling", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="FAMILY", help="residual, transformer")
    parser.add_argument("--most", type=int, default=10**9, help="deepest network")
    parser.add_argument("--gap", type=float, default=0.02, help="proven gap at which a plan is due")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for each network")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    fits: dict[str, dict[str, float]] = {}
    for family in FAMILIES:
        if options.only and family.name not in options.only:
            continue
        depths = [depth for depth in family.depths if depth <= options.most]
        print(f"planning {family.name}: {depths}", file=sys.stderr, flush=True)
        found = measure(family, depths, gap=options.gap, time_limit=options.time_limit)
        rows += found
        if len(found) > 1:
            fields = ("cpu_seconds", "first_seconds", "planned_bytes")
            fits[family.name] = {field: exponent(found, field) for field in fields}
    keep_list(options.out / "results.json", rows, lambda row: row.family)
    if options.json:
        document = {"rows": [asdict(row) for row in rows], "exponents": fits}
        print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
        return 0
    show(rows)
    for name, fit in fits.items():
        print(
            f"{name}: CPU seconds grow as depth^{fit['cpu_seconds']:.2f} (to the first plan "
            f"^{fit['first_seconds']:.2f}), memory as depth^{fit['planned_bytes']:.2f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
