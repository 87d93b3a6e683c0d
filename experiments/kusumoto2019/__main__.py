"""The smallest memory of common networks, as in Kusumoto et al. (NeurIPS 2019, table 1).

    python -m experiments.kusumoto2019 [--only NAME ...] [--time-limit S] [--graphs FOLDER] [--json]

Networks of the paper at its batch sizes, captured by lowtide with fake tensors and roofline times;
the smallest peak of each method in GB (parameters, gradients and images included), with the extra
time there, and what the paper measured on a GPU with Chainer. `lowtide` is the smallest budget that
`lowtide smallest` finds within the time limit, beside its lower bound: that of the base order, and
where another order goes below it, that of any order.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from lowtide import Schedule, simulate
from lowtide.commands.terminal import aligned
from lowtide.solver.baselines import BASELINES, PUBLISHED, NotApplicableError
from lowtide.solver.bracket import bracket
from lowtide.solver.control import Control
from lowtide.solver.files import write_atomic

from ..models.steps import graph_of
from ..papers.command import tell
from ..papers.panels import Point, panels

# name: batch, then the paper's GB: without recomputation, Chen's, approximate, exact program.
PAPER: dict[str, tuple[int, float, float, float, float]] = {
    "pspnet": (2, 9.4, 4.0, 2.7, 2.8),
    "unet_square": (8, 9.1, 7.4, 5.0, 4.7),
    "resnet50": (96, 8.9, 3.7, 3.4, 3.4),
    "resnet152": (48, 9.2, 2.4, 2.3, 2.3),
    "vgg19": (64, 7.0, 4.7, 4.5, 4.5),
    "densenet161": (32, 8.5, 1.8, 1.6, 1.7),
    "googlenet": (256, 8.5, 6.5, 5.2, 5.2),
}
METHODS = ("sqrt_n", "kusumoto", "kusumoto_exact", "rotor", "revolve")


class Row(msgspec.Struct):
    """The smallest peak of one method on one network; bytes include resident ones."""

    network: str
    batch: int
    ops: int
    method: str
    peak_bytes: int | None
    base_bytes: int
    overhead: float | None
    bound_bytes: int | None
    published_gb: float | None
    seconds: float
    reason: str = ""


def rows_of(name: str, time_limit: float, graphs: Path | None) -> list[Row]:
    """Every method on one network."""
    batch, *printed = PAPER[name]
    graph = graph_of(name, batch, graphs)
    base = simulate(graph, Schedule.keep_everything(graph))
    published: dict[str, float] = dict(
        zip(("keep_everything", "sqrt_n", "kusumoto", "kusumoto_exact"), printed, strict=True)
    )

    def row(method: str, peak: int | None, spent: int | None, begun: float, reason: str = "",
            bound: int | None = None) -> Row:  # fmt: skip
        overhead = None if spent is None else spent / base.time_ns - 1
        seconds = round(time.monotonic() - begun, 2)
        tell(f"{name}, {method}: {reason or f'{(peak or 0) / 1e9:.2f} GB'} in {seconds} s")
        return Row(
            name, batch, len(graph.ops), method, peak, base.peak_bytes, overhead, bound,
            published.get(method), seconds, reason,
        )  # fmt: skip

    found = [row("keep_everything", base.peak_bytes, base.time_ns, time.monotonic())]
    for method in METHODS:
        begun = time.monotonic()
        try:
            schedule = {**BASELINES, **PUBLISHED}[method](graph, None, Control(time_limit))
        except NotApplicableError as error:
            found.append(row(method, None, None, begun, str(error)))
            continue
        assert schedule is not None
        result = simulate(graph, schedule)
        found.append(row(method, result.peak_bytes, result.time_ns, begun))
    begun = time.monotonic()
    edge = bracket(graph, time_limit=time_limit)
    spent = int(graph.arrays.time[list(edge.computes)].sum())
    bound = edge.bound_bytes
    if edge.found_bytes < bound:  # in another order, of which the bound in base order says nothing
        bound = edge.any_order_bound_bytes
    found.append(row("lowtide", edge.found_bytes, spent, begun, bound=bound))
    return found


def table(rows: list[Row]) -> str:
    """GB and saving, with the extra time, beside the paper's."""
    lines = [["network", "method", "GB", "of the peak", "extra time", "paper, GB", "of its peak"]]
    for row in rows:
        whole = PAPER[row.network][1]
        paper = row.published_gb
        lines.append(
            [
                f"{row.network} b{row.batch}" if row.method == "keep_everything" else "",
                row.method,
                "n/a" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.2f}",
                "" if row.peak_bytes is None else f"{100 * row.peak_bytes / row.base_bytes:.0f}%",
                "" if row.overhead is None else f"{100 * row.overhead:.0f}%",
                "" if paper is None else f"{paper}",
                "" if paper is None else f"{100 * paper / whole:.0f}%",
            ]
        )
        if row.bound_bytes is not None:
            share = 100 * row.bound_bytes / row.base_bytes
            lines.append(["", "lower bound", f"{row.bound_bytes / 1e9:.2f}", f"{share:.0f}%"])
            lines[-1] += ["", "", ""]
    return aligned(lines, right=range(2, 7))


def main(argv: list[str] | None = None) -> int:
    """Run the chosen networks and write results.json."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.kusumoto2019",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="each method")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER", help="keep captured graphs here")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    code = 0
    try:
        for name in options.only:
            rows += rows_of(name, options.time_limit, options.graphs)
    except KeyboardInterrupt:
        tell("interrupted: the networks so far")
        code = 130
    path = options.out / "results.json"
    if path.exists():
        kept = msgspec.json.decode(path.read_bytes(), type=list[Row])
        new = {row.network for row in rows}
        rows = [row for row in kept if row.network not in new] + rows
        rows.sort(key=lambda row: list(PAPER).index(row.network))
    text = msgspec.json.format(msgspec.json.encode(rows), indent=1)
    write_atomic(path, text + b"\n")
    draw(rows, options.out)
    print(text.decode() if options.json else table(rows))
    return code


def draw(rows: list[Row], folder: Path) -> None:
    """Extra time at the smallest peak of each method, a panel for each network."""
    points = [
        Point(f"{row.network}, {row.batch} images", row.method, row.peak_bytes / 1e9,
              100 * (row.overhead or 0.0))
        for row in rows
        if row.peak_bytes is not None
    ]  # fmt: skip
    panels(points, folder / "smallest.svg", "smallest peak, GB", "extra time, %", logarithmic=False)


if __name__ == "__main__":
    sys.exit(main())
