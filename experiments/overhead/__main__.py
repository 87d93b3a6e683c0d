"""Time of a training step, replayed without recomputation against plain PyTorch.

    python -m experiments.overhead [--models NAME,...] [--steps N] [--give-back] [--out FOLDER]

Every row is one model: medians over steps that alternate between both, forward and backward, no
optimizer, one thread, in processor time (a machine that is shared disturbs it less than wall time).
`fastest` compares the fastest step of each, `spread` is the interquartile range of the ratio of
neighbouring steps, the last two columns are page faults of a plain and of a replayed step. With
--give-back the C library may give freed memory back to the system, as it does by default.

Rows go to results.json in this folder, or in FOLDER, one by one; those of other models stay.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import torch

from lowtide.frontends.torch.costs.heap import keep_freed_memory
from lowtide.solver.errors import InputError

from ..papers.keep import keep_list
from .models import MODELS
from .study import measure


def main(arguments: list[str] | None = None) -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m experiments.overhead")
    parser.add_argument(
        "--steps", type=int, default=0, help="steps of each; 0: some seconds' worth"
    )
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument(
        "--give-back", action="store_true", help="let the C library give freed memory back"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not options.give_back:
        keep_freed_memory()
    rows = []
    for name in options.models.split(","):
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure(name, options.steps))
        try:
            keep_list(options.out / "results.json", rows, lambda row: row.model)
        except InputError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode())
        return 0
    print(
        f"{'model':<12}{'ops':>6}{'plain':>13}{'replayed':>13}{'overhead':>10}{'fastest':>10}"
        f"{'spread':>8}{'page faults':>16}"
    )
    for row in rows:
        print(
            f"{row.model:<12}{row.ops:>6}{row.plain_ms:>10.3f} ms"
            f"{row.replayed_ms:>10.3f} ms{row.overhead_percent:>+9.2f}%"
            f"{row.fastest_overhead_percent:>+9.2f}%{row.spread_percent:>7.1f}%{row.plain_faults:>9.0f}{row.replayed_faults:>7.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
