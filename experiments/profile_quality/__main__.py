"""Profile against reality: `python -m experiments.profile_quality [--models cnn mlp] [--json]`.

With `--plans`, for several plans of each model: predicted beside measured extra time. These rows go
to results.json in this folder, or in that of `--out`; those of other models stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from lowtide.frontends.torch.costs.heap import keep_freed_memory
from lowtide.solver.errors import InputError

from ..papers.keep import keep_list
from .models import MODELS
from .plans import Cost, costs, differences
from .study import study


def main(argv: list[str] | None = None) -> int:
    """Print one row for each model; with `--json`, one document."""
    parser = argparse.ArgumentParser(prog="experiments.profile_quality", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["mlp", "cnn", "gpt2-tiny"])
    parser.add_argument("--repeats", type=int, default=9, help="timed steps of each kind")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each profile")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plans", action="store_true", help="extra time of plans instead")
    parser.add_argument("--pairs", type=int, default=31, help="with --plans: pairs of steps each")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    if options.plans:
        try:
            _print_costs(options)
        except InputError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        return 0
    rows = []
    if not options.json:
        print(
            f"{'model':11}{'ops':>6}{'sig.':>6}{'profile':>9}{'sum':>10}{'roofline':>10}"
            f"{'replay':>10}{'eager':>10}{'w.err':>8}{'log err':>8}"
            f"{'predicted peak':>16}{'measured - p.':>15}"
        )
    for name in options.models:
        row = study(name, MODELS[name], repeats=options.repeats, budget_s=options.budget)
        rows.append(row)
        if not options.json:
            print(
                f"{row.model:11}{row.ops:6}{row.signatures:6}{row.profile_s:8.1f}s"
                f"{row.sum_ms:8.1f}ms{row.roofline_ms:8.1f}ms{row.replay_ms:8.1f}ms"
                f"{row.eager_ms:8.1f}ms{row.weighted_error:8.2f}{row.log_error:8.2f}"
                f"{row.predicted_peak:16}{row.measured_peak - row.predicted_peak:15}",
                flush=True,
            )
    if options.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
    return 0


def _print_costs(options: argparse.Namespace) -> None:
    """Print a line for each plan, and the differences of all."""
    found: list[Cost] = []
    out = sys.stderr if options.json else sys.stdout
    for name in options.models:
        for cost in costs(
            name, MODELS[name], pairs=options.pairs, budget_s=options.budget, time_limit=10.0
        ):
            found.append(cost)
            print(
                f"{cost.model:11}{cost.method:8}{cost.budget:>5}{cost.predicted_percent:8.2f}%"
                f"{cost.measured_percent:8.2f}%  spread {cost.spread_percent:.1f}",
                file=out,
                flush=True,
            )
        keep_list(options.out / "results.json", found, lambda cost: cost.model)
    if options.json:
        json.dump([asdict(cost) for cost in found], sys.stdout, indent=1)
        print()
    elif found:
        middle, most = differences(found)
        print(
            f"{len(found)} plans: differences of {middle:.2f} points in the median, "
            f"{most:.2f} at most"
        )


if __name__ == "__main__":
    sys.exit(main())
