"""Largest batch in 16 GB at the cost of at most one more forward pass: figure 6 of Checkmate.

    python -m experiments.checkmate2020.batches [--only NAME ...] [--time-limit S] [--json]

Sizes and times are linear in the batch: each step is captured at two batches, and every tensor and
op in between is on the line through them. A batch counts if the method's schedule fits 16e9 bytes,
parameters included, and takes no longer than the step and one more forward. For the heuristics
every batch is tried by bisection; for `auto` too, with the time limit for each batch. `no schedule`
is the largest batch at which no single op, with its inputs, needs more than there is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

import lowtide
from lowtide.commands.terminal import aligned
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.files import write_atomic
from lowtide.solver.smallest import single_op_bound

from ..models.steps import graph_of
from ..papers.command import tell

BYTES = 16_000_000_000
BOUND = "no schedule"
METHODS = ("keep_everything", "ap_sqrt_n", "linearized_sqrt_n", "linearized_greedy", "auto")
# Figure 6 and the text around it, as far as printed.
PAPER: dict[str, dict[str, int]] = {
    "unet": {"keep_everything": 16, "auto": 61},
    "vgg19": {
        "keep_everything": 167, "linearized_sqrt_n": 197, "linearized_greedy": 266, "auto": 289,
    },
    "mobilenet": {"auto": 1105},
}  # fmt: skip
SMALL, LARGE = 2, 4


class Row(msgspec.Struct):
    """The largest batch of one method on one network, or (`BOUND`) of any."""

    network: str
    method: str
    batch: int
    peak_bytes: int | None
    overhead: float | None
    published: int | None


class Line:
    """The step of a network at any batch."""

    def __init__(self, name: str, graphs: Path | None) -> None:
        self.low, self.high = (graph_of(name, batch, graphs) for batch in (SMALL, LARGE))
        if len(self.low.ops) != len(self.high.ops):
            raise lowtide.LowtideError(f"{name}: the graph changes its form with the batch")

    def at(self, batch: int) -> lowtide.Graph:
        """The graph at a batch."""

        def on(a: int, b: int) -> int:
            return max(0, a + (b - a) * (batch - SMALL) // (LARGE - SMALL))

        low, high = self.low, self.high
        ops = tuple(
            msgspec.structs.replace(
                a,
                time_ns=on(a.time_ns, b.time_ns),
                workspace_bytes=on(a.workspace_bytes, b.workspace_bytes),
            )
            for a, b in zip(low.ops, high.ops, strict=True)
        )
        tensors = tuple(
            msgspec.structs.replace(a, size_bytes=on(a.size_bytes, b.size_bytes), spec="")
            for a, b in zip(low.tensors, high.tensors, strict=True)
        )
        return msgspec.structs.replace(low, ops=ops, tensors=tensors)


def fits(graph: lowtide.Graph, method: str, time_limit: float) -> lowtide.Plan | None:
    """A plan within memory and time, if the method finds one."""
    forward = sum(op.time_ns for op in graph.ops if op.phase == "forward")
    if graph.resident_bytes >= BYTES:
        return None
    try:
        plan = lowtide.solve(graph, BYTES, method=method, time_limit=time_limit, gap=1e-3)
    except (InfeasibleError, NoPlanError):
        return None
    return plan if plan.time_ns <= plan.base_time_ns + forward else None


def largest(name: str, method: str, line: Line, time_limit: float) -> Row:
    """Bisection over batches."""
    published = PAPER[name].get(method)
    low, best, top = 0, None, 1
    while (plan := fits(line.at(top), method, time_limit)) is not None:
        low, best, top = top, plan, 2 * top
    while top - low > max(1, low // 200):
        middle = (low + top) // 2
        plan = fits(line.at(middle), method, time_limit)
        if plan is None:
            top = middle
        else:
            low, best = middle, plan
        tell(f"{name}, {method}: between {low} and {top}")
    if best is None:
        return Row(name, method, 0, None, None, published)
    return Row(name, method, low, best.peak_bytes, best.overhead, published)


def bound(name: str, line: Line) -> Row:
    """The largest batch that single ops allow, which no schedule exceeds."""

    def possible(batch: int) -> bool:
        return single_op_bound(line.at(batch), any_order=True)[0] <= BYTES

    low, top = 0, 1
    while possible(top):
        low, top = top, 2 * top
    while top - low > 1:
        middle = (low + top) // 2
        low, top = (middle, top) if possible(middle) else (low, middle)
    return Row(name, BOUND, low, None, None, None)


def table(rows: list[Row]) -> str:
    """Batches beside the paper's, with the factor over keeping everything."""
    lines = [["network", "method", "batch", "times plain", "extra time", "paper"]]
    for row in rows:
        plain = next(r for r in rows if r.network == row.network and r.method == METHODS[0])
        extra = "" if row.overhead is None else f"{100 * row.overhead:.1f}%"
        times = f"{row.batch / max(1, plain.batch):.2f}"
        paper = str(row.published or "")
        lines.append([row.network, row.method, f"{row.batch}", times, extra, paper])
    return aligned(lines, right=range(2, 6))


def main(argv: list[str] | None = None) -> int:
    """Run the chosen networks and write batches.json."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.checkmate2020.batches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S", help="each batch")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER", help="keep captured graphs here")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for name in options.only:
        line = Line(name, options.graphs)
        for method in METHODS:
            rows.append(largest(name, method, line, options.time_limit))
            tell(f"{name}, {method}: {rows[-1].batch}")
        rows.append(bound(name, line))
    text = msgspec.json.format(msgspec.json.encode(rows), indent=1)
    write_atomic(options.out / "batches.json", text + b"\n")
    print(text.decode() if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
