"""Ours beside the published figures: `auto` at the budgets that the literature reports.

    python -m experiments.published [--only PATTERN ...] [--time-limit S] [--results FILE] [--json]

Instances and published.json are read from the folder that LOWTIDE_INSTANCES names
(experiments/README.md says which). Two threads. `below` means less overhead than the best
published plan that keeps within the budget, `equal` within half of its last printed digit (or what
its solver left open), `only ours` that nobody reported one, `not comparable` that a published batch
is larger than single ops allow here. With --results every row is saved as it
is done, and a second run with the same settings goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.frontends.chains import linear_chain
from lowtide.frontends.instances import read_instance
from lowtide.solver.errors import LowtideError
from lowtide.solver.solve import solve

from ..papers.command import INTERRUPTED
from .cases import all_cases, path_of, select
from .folder import instances_folder
from .measure import Row, Settings, hopeless, measure
from .results import Results, document, read_results, write_results
from .table import line, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .cases import Case


def main(argv: list[str] | None = None) -> int:
    """Print the table of what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PATTERN", help="such as resnet50 or 'un_11*5 GiB'"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="for each row")
    parser.add_argument("--gap", type=float, default=1e-4, help="gap at which a solve stops")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="of each solve")
    parser.add_argument("--results", type=Path, metavar="FILE", help="save rows, and go on there")
    parser.add_argument("--fresh", action="store_true", help="measure known rows again")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    try:
        return run(options)
    except LowtideError as error:
        print(f"experiments.published: {error}", file=sys.stderr)
        return error.exit_code


def run(options: argparse.Namespace) -> int:
    """Measure, save and print."""
    folder = instances_folder()
    if not folder.is_dir():
        print(
            f"experiments.published: no instances in {folder}: set LOWTIDE_INSTANCES to their"
            " folder; nothing was measured",
            file=sys.stderr,
        )
        return 1
    everything, skipped = all_cases(folder)
    cases = select(everything, options.only)
    if not cases:
        print("experiments.published: no row matches; see --list", file=sys.stderr)
        return 1
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    settings = Settings(options.time_limit, options.gap, options.seed, options.threads)
    stored = Results()
    if options.results is not None and not options.fresh:
        stored = read_results(options.results)
    elif options.results is not None and options.only and options.results.exists():
        stored = read_results(options.results)  # --fresh renews the chosen rows only
    stored.skipped = skipped
    solve(linear_chain(6), "60%", time_limit=5.0)  # compiles the search, which no row should pay
    shown: list[Row] = []
    code = 0
    try:
        for row in _rows(folder, cases, settings, Results() if options.fresh else stored):
            shown.append(row)
            stored.put(row, everything)
            if options.results is not None:
                write_results(stored, options.results)
    except KeyboardInterrupt:
        print(f"interrupted: {len(shown)} of {len(cases)} rows", file=sys.stderr)
        code = INTERRUPTED
    shown_results = Results(shown, [] if options.only else skipped)
    print(document(shown_results) if options.json else table(shown, shown_results.skipped))
    return code


def _rows(
    folder: Path, cases: Sequence[Case], settings: Settings, stored: Results
) -> Iterator[Row]:
    """Rows in order, with progress on stderr."""
    instance, graph = "", None
    for number, case in enumerate(cases, 1):
        if graph is None or case.instance != instance:
            instance, graph = case.instance, read_instance(path_of(folder, case.instance))
        label = f"{number} of {len(cases)}: {case.name}"
        if hopeless(case, graph):
            print(f"{label}: below what one op needs, skipped", file=sys.stderr, flush=True)
            continue
        known = stored.known(case, settings, graph.structure_hash)
        if known is None:
            print(f"{label} ...", file=sys.stderr, flush=True)
        row = known or measure(case, graph, settings)
        print(f"{label}: {line(row)}{' (stored)' * (known is not None)}", file=sys.stderr)
        yield row


if __name__ == "__main__":
    sys.exit(main())
