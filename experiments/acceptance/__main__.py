"""Seven models, ten budgets each, end to end.

    python -m experiments.acceptance [--only MODEL ...] [--json]

Run it in the repository: the models are those of the tests. One thread; times are processor time,
which a shared machine disturbs less than wall time. Extra times over plain PyTorch come three
times: `pred.` before any step of the plan was run, `timed` once `lowtide.time_plans` had timed the
ten plans, which is no prediction from other plans any more, and `meas.` as measured once more, in
other modules. `results.json` is what `--json` prints. Ends with 1 unless every measured peak is the
predicted one, within its budget and no higher than that of a larger budget, and all bits are equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import torch

from lowtide.frontends.torch.costs.heap import keep_freed_memory
from tests.models import ZOO, make

from .study import Row, monotone, study

_HEAD = (
    f"{'model':7}{'ops':>4}{'budget':>12}{'predicted':>12}{'measured':>12}{'diff':>6}"
    f"{'bound':>8}{'overh.':>8}{'gap':>7}{'pred.':>8}{'timed':>8}{'meas.':>8}{'sched.':>8}"
    f"{'solve':>7}  bits"
)


def main(argv: list[str] | None = None) -> int:
    """Print one row for each model and budget; with `--json`, one document."""
    parser = argparse.ArgumentParser(prog="python -m experiments.acceptance", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ZOO, default=ZOO)
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each plan")
    parser.add_argument("--gap", type=float, default=5e-3, help="gap at which the solver stops")
    parser.add_argument("--repeats", type=int, default=61, help="timed steps of each kind")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    out = sys.stderr if options.json else sys.stdout
    print(_HEAD, file=out)
    for name in options.only:
        for row in study(
            name, make, time_limit=options.time_limit, gap=options.gap, repeats=options.repeats
        ):
            rows.append(row)
            print(line(row), file=out, flush=True)
    falls = monotone(rows)
    print(f"peaks fall with the budget, and stay within it: {'yes' if falls else 'NO'}", file=out)
    if options.json:
        document = {"monotone": falls, "rows": [asdict(row) for row in rows]}
        json.dump(document, sys.stdout, indent=1)
        print()
    exact = all(r.bits_equal and r.measured_bytes == r.predicted_bytes for r in rows)
    return 0 if exact and falls else 1


def line(row: Row) -> str:
    """A row of the table."""
    return (
        f"{row.model:7}{row.ops:4}{row.budget_bytes:12}"
        f"{row.predicted_bytes:12}{row.measured_bytes:12}"
        f"{row.measured_bytes - row.predicted_bytes:6}{row.bound_percent:7.2f}%"
        f"{row.predicted_percent:7.2f}%{row.gap_percent:6.2f}%{row.over_plain_percent:+7.1f}%"
        f"{row.timed_percent:+7.1f}%{row.measured_percent:+7.1f}%"
        f"{row.scheduled_percent:+7.1f}%{row.solve_seconds:6.1f}s  "
        f"{'equal' if row.bits_equal else 'DIFFERENT'}"
    )


if __name__ == "__main__":
    sys.exit(main())
