"""Compiled plans against PyTorch's own: `python -m experiments.compile [--models gpt]`.

Compiling takes minutes for each model. `results.json` holds one run on a busy machine: mlp and cnn
with all settings, gpt with three.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import torch

from .models import MODELS
from .study import SETTINGS, Row, study

HEAD = (
    "model planner       setting        peak   predicted  time ms overhead  gradient bits  "
    "compile s"
)


def show(row: Row) -> None:
    """One line about a compiled step."""
    if not row.peak_bytes:
        print(
            f"{row.model:6}{row.planner:9}{row.setting:12.6g}  no plan, smallest "
            f"{row.smallest_bytes}",
            flush=True,
        )
        return
    print(
        f"{row.model:6}{row.planner:9}{row.setting:12.6g}{row.peak_bytes:12}"
        f"{row.predicted_bytes:12}{row.milliseconds:9.2f}{row.overhead:8.3f}"
        f"{row.gradient_error:10.1e} {row.same_bits!s:6}{row.compile_s:8.1f}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    """Print a row for each compiled step; `--output` adds them to a JSON file."""
    parser = argparse.ArgumentParser(prog="experiments.compile", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--settings", nargs="+", type=float, default=list(SETTINGS))
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each plan")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file; rows of other models in it stay")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
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
            show(row)
        if options.output is not None:
            old = json.loads(options.output.read_text()) if options.output.exists() else []
            kept = [row for row in old if row["model"] != name]
            options.output.write_text(json.dumps([*kept, *map(asdict, rows)], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
