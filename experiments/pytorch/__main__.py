"""Compiled plans against PyTorch's own: `python -m experiments.pytorch [--models gpt]`.

Compiling takes minutes for each model.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

from lowtide.frontends.torch.costs.heap import keep_freed_memory
from lowtide.solver.files import write_atomic

from .models import MODELS
from .rows import read
from .show import HEAD, line, picture
from .study import SETTINGS, study


def main(argv: list[str] | None = None) -> int:
    """Print a row for each compiled step; write rows and pictures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.pytorch", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--settings", nargs="+", type=float, default=list(SETTINGS))
    parser.add_argument("--repeats", type=int, default=41, help="timed steps of each")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds to solve a budget")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent,
        help="folder of results.json and pictures; rows of other models in it stay",
    )  # fmt: skip
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    warnings.simplefilter("ignore")
    path = options.out / "results.json"
    print(HEAD)
    for name in options.models:
        rows = study(
            name,
            MODELS[name],
            settings=options.settings,
            repeats=options.repeats,
            time_limit=options.time_limit,
            told=lambda row: print(f"# {asdict(row)}", file=sys.stderr, flush=True),
        )
        for row in rows:
            print(line(row), flush=True)
        old = read(path) if path.exists() else []
        kept = [row for row in old if row.model != name]
        text = msgspec.json.format(msgspec.json.encode([*kept, *rows]), indent=1)
        write_atomic(path, text + b"\n")
        picture(rows, name, options.out / f"results.{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
