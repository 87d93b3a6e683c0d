"""Memory and time against depth and length, as in Chen et al. 2016 (figures 4 to 6).

    python -m experiments.chen2016 [--only resnet lstm trained] [--layers 50,...] [--lengths 8,...]

Residual networks (bottleneck blocks, 32 images of 224 x 224) and four layers of LSTM cells (1024
wide, batch 64, softmax over 5000) unrolled over a sequence, captured with fake tensors and roofline
times. For each: every result in memory of its own, the planner of section 3 (in-place and sharing,
no recomputation), memory freed as soon as possible; sqrt(n) and log(n), each at its smallest
memory; lowtide within the memory of sqrt(n), and at the least memory that it reaches with at most
30% more time, found by bisection.
`trained` runs a narrow deep network for real, with measured peak and step time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import torch

import lowtide
from lowtide import Schedule, simulate
from lowtide.commands.terminal import aligned
from lowtide.solver.baselines import BASELINES
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.files import write_atomic
from lowtide.solver.memory.chen import plan_tags
from lowtide.solver.units import format_bytes

from ..models.classifiers import resnet
from ..models.steps import WithLoss, kept, recurrent_graph
from ..papers import trained
from ..papers.command import tell
from ..papers.panels import Point, panels

LAYERS, LENGTHS = (50, 101, 200, 500, 1001), (8, 16, 32, 64)
EXTRA = 0.30  # the paper's price for sublinear memory
STEPS = 5  # of the bisection


class Row(msgspec.Struct):
    """One method on one network; bytes include parameters, gradients and inputs."""

    network: str
    size: int
    ops: int
    method: str
    peak_bytes: int | None
    overhead: float | None
    bound: float | None


class Results(msgspec.Struct):
    """Everything that was measured."""

    planned: list[Row]
    trained: list[trained.Row]


def residual_graph(layers: int, graphs: Path | None) -> lowtide.Graph:
    """The step of a bottleneck network of about so many layers, at batch 32."""

    def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        with torch.device("meta"):
            model = WithLoss(resnet(stages(layers)))
            images = torch.zeros(32, 3, 224, 224)
            return model.train(), (images, torch.zeros(32, dtype=torch.int64))

    return kept(f"resnet{layers}-b32", make, graphs)


def stages(layers: int) -> tuple[int, ...]:
    """Blocks of each of the four stages, in the proportions of ResNet-50."""
    blocks = max(4, (layers - 2) // 3)
    counts = [max(1, blocks * share // 16) for share in (3, 4, 6, 3)]
    counts[2] += blocks - sum(counts)
    return tuple(counts)


def rows_of(network: str, size: int, graph: lowtide.Graph, time_limit: float) -> list[Row]:
    """All methods on one step."""
    base = simulate(graph, Schedule.keep_everything(graph))
    found: list[Row] = []

    def add(method: str, peak: int | None, overhead: float | None, bound: float | None) -> None:
        words = "nothing" if peak is None else f"{format_bytes(peak)}, {100 * (overhead or 0):.1f}%"
        tell(f"{network} {size} ({len(graph.ops)} ops), {method}: {words}")
        found.append(Row(network, size, len(graph.ops), method, peak, overhead, bound))

    def planned(method: str, budget: int) -> lowtide.Plan | None:
        try:
            plan = lowtide.solve(graph, budget, time_limit=time_limit, gap=1e-3)
        except (InfeasibleError, NoPlanError):
            return None
        bound = None
        if plan.lower_bound_ns >= 0:
            bound = max(0.0, plan.lower_bound_ns / plan.base_time_ns - 1.0)
        if method:
            add(method, plan.peak_bytes, plan.overhead, bound)
        return plan

    add("each result its own memory", plan_tags(graph, in_place=False, sharing=False).total_bytes,
        0.0, None)  # fmt: skip
    add("planner of section 3", plan_tags(graph).total_bytes, 0.0, None)
    add("none", base.peak_bytes, 0.0, 0.0)
    smallest = base.peak_bytes
    for method in ("sqrt_n", "log_n"):
        schedule = BASELINES[method](graph, None)
        assert schedule is not None
        result = simulate(graph, schedule)
        add(method, result.peak_bytes, result.time_ns / base.time_ns - 1.0, None)
        if method == "sqrt_n":
            smallest = result.peak_bytes
    best = planned("lowtide, memory of sqrt_n", smallest)
    low, high = graph.resident_bytes, smallest
    if best is None or best.overhead > EXTRA:
        low, high, best = smallest, base.peak_bytes, None
    for _ in range(STEPS):
        middle = (low + high) // 2
        plan = planned("", middle)
        if plan is None or plan.overhead > EXTRA:
            low = middle
        else:
            high, best = plan.peak_bytes, plan
    if best is not None:
        add("lowtide, +30% time", best.peak_bytes, best.overhead, None)
    return found


def train(time_limit: float, repeats: int) -> list[trained.Row]:
    """A narrow network of 101 layers on small images, trained for real."""
    torch.manual_seed(0)
    model = WithLoss(resnet(stages(101), classes=10, width=8))
    batches = [(torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))) for _ in range(2)]

    def budgets(graph: lowtide.Graph) -> list[int]:
        schedule = BASELINES["sqrt_n"](graph, None)
        assert schedule is not None
        return [simulate(graph, schedule).peak_bytes]

    return trained.train(
        "resnet101, narrow", model, batches, ("sqrt_n", "log_n", "auto"), budgets,
        time_limit=time_limit, repeats=repeats, tell=tell,
    )  # fmt: skip


def table(results: Results) -> str:
    """Peaks and overheads against size."""
    lines = [["network", "ops", "method", "peak", "extra time", "bound"]]
    before = None
    for row in results.planned:
        name = f"{row.network} {row.size}"
        lines.append(
            [
                name if name != before else "", str(row.ops) if name != before else "", row.method,
                "-" if row.peak_bytes is None else format_bytes(row.peak_bytes),
                "" if row.overhead is None else f"{100 * row.overhead:.1f}%",
                "" if row.bound is None else f"{100 * row.bound:.1f}%",
            ]
        )  # fmt: skip
        before = name
    blocks = [aligned(lines, right=(1, 3, 4, 5))] if results.planned else []
    blocks += [trained.table(results.trained)] if results.trained else []
    return "\n\n".join(blocks)


def main(argv: list[str] | None = None) -> int:
    """Run the chosen parts and write results.json."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.chen2016",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = ("resnet", "lstm", "trained")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--layers", default=",".join(map(str, LAYERS)), metavar="N,N,...")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), metavar="N,N,...")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S", help="each plan")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="timed steps of each")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER", help="keep captured graphs here")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    results = Results([], [])
    code = 0
    try:
        if "resnet" in options.only:
            for layers in map(int, options.layers.split(",")):
                graph = residual_graph(layers, options.graphs)
                results.planned += rows_of("resnet", layers, graph, options.time_limit)
        if "lstm" in options.only:
            for length in map(int, options.lengths.split(",")):
                graph = recurrent_graph(length, folder=options.graphs)
                results.planned += rows_of("lstm", length, graph, options.time_limit)
        if "trained" in options.only:
            results.trained = train(options.time_limit, options.repeats)
    except KeyboardInterrupt:
        tell("interrupted: the results so far")
        code = 130
    keep(options.out / "results.json", results)
    text = msgspec.json.format(msgspec.json.encode(results), indent=1)
    print(text.decode() if options.json else table(results))
    return code


def keep(path: Path, results: Results) -> None:
    """Write the file, whole or not at all; what was not run again stays."""
    known = Results([], [])
    if path.exists():
        known = msgspec.json.decode(path.read_bytes(), type=Results)
    new = {(row.network, row.size) for row in results.planned}
    planned = [row for row in known.planned if (row.network, row.size) not in new]
    merged = Results([*planned, *results.planned], results.trained or known.trained)
    text = msgspec.json.format(msgspec.json.encode(merged), indent=1)
    write_atomic(path, text + b"\n")
    draw(merged.planned, path.parent)


def draw(rows: list[Row], folder: Path) -> None:
    """Peak against depth and length, as in figures 4 and 5 of the paper."""
    points = [
        Point(row.network, row.method, row.size, row.peak_bytes / 2**30)
        for row in rows
        if row.peak_bytes is not None
    ]
    panels(points, folder / "memory.svg", "layers, or steps of the LSTM", "peak, GiB",
           logarithmic=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
