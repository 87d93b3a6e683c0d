"""What does integer programming gain over greedy, per model and budget?

    python -m experiments.gain [--only MODEL ...] [--budgets 80%,60%] [--time-limit S] [--json]

Six training steps of full size, captured without allocating them, times from the roofline model;
the overhead of every method at the same budget. `search` is the sequence search of `auto` alone,
without integer programs, for the same time; `gain` is how many points of the step's time `auto`
saves against the best heuristic. --graphs keeps the captured graphs in a folder for the next run.
results.json beside this file holds the rows; those of models that were not run again stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import lowtide
from lowtide.commands.terminal import aligned
from lowtide.solver.errors import LowtideError
from lowtide.solver.units import expand_budgets

from ..papers.command import INTERRUPTED, tell
from ..papers.keep import keep_list
from .models import MODELS, graph_of
from .study import AUTO, BUDGETS, HEURISTICS, METHODS, Row, study

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: list[str] | None = None) -> int:
    """Print one line for each model and budget."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--budgets", default=",".join(BUDGETS), metavar="B,B,...")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="each plan")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER", help="keep captured graphs here")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    code = 0
    try:
        budgets = expand_budgets(options.budgets)
        for name in options.only:
            graph = load(name, options.graphs)
            tell(f"{name}: {len(graph.ops)} ops")
            for row in study(name, graph, budgets, time_limit=options.time_limit, report=tell):
                rows.append(row)
    except KeyboardInterrupt:
        tell("interrupted: the rows so far")
        code = INTERRUPTED
    except LowtideError as error:
        tell(str(error))
        return error.exit_code
    keep_list(options.out / "results.json", rows, lambda row: row.model)
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else table(rows))
    return code


def load(name: str, folder: Path | None) -> lowtide.Graph:
    """The graph from the folder, or captured and put there."""
    if folder is None:
        return graph_of(name)
    path = folder / f"{name}.graph.json.gz"
    if path.exists():
        return lowtide.read_graph(path)
    folder.mkdir(parents=True, exist_ok=True)
    graph = graph_of(name)
    lowtide.write_graph(graph, path)
    return graph


def table(rows: Sequence[Row]) -> str:
    """Overheads side by side."""
    lines = [["model", "ops", "budget", *METHODS, "bound", "gap", "gain"]]
    found = {(row.model, row.budget, row.method): row for row in rows}
    for model, budget in dict.fromkeys((row.model, row.budget) for row in rows):
        here = {m: found[model, budget, m] for m in METHODS if (model, budget, m) in found}
        auto = here.get(AUTO)
        known = [here[m].overhead for m in HEURISTICS if m in here]
        best = min((value for value in known if value is not None), default=None)
        gain = ""
        if auto is not None and auto.overhead is not None:
            gain = "all" if best is None else f"{100 * (best - auto.overhead):.2f}"
        lines.append(
            [
                model,
                str(next(iter(here.values())).ops),
                budget,
                *(_percent(here[m].overhead, "-") if m in here else "" for m in METHODS),
                "" if auto is None else _percent(auto.bound),
                "" if auto is None else _percent(auto.gap),
                gain,
            ]
        )
    return aligned(lines, right=range(1, len(lines[0])))


def _percent(value: float | None, missing: str = "") -> str:
    return missing if value is None else f"{100 * value:.2f}%"


if __name__ == "__main__":
    sys.exit(main())
