"""Which models of Hugging Face transformers replay exactly, and what a plan at 50% saves.

    python -m experiments.hugging_face [--models NAME,...] [--seconds S] [--out FILE] [--json]

Every row is one model, built small from its configuration with random weights and trained two
steps with AdamW, plainly and by a plan. `saved` compares the measured peaks of a step, without what
is resident; `predicted` says whether the plan's peak is the measured one to the byte. The budget is
50%, or the next of 60, 70 and 80 for which a plan is found, or the smallest that is; a model whose
plan runs nothing again trains by another schedule as well, which runs everything again.
`results.json` is what `--out` writes; models that are in the file and not asked for stay there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from lowtide.solver.files import write_atomic

from .models import MODELS
from .study import Row, study


def main(arguments: list[str] | None = None) -> int:
    """Run the study; 1 if a model is neither exact nor refused."""
    parser = argparse.ArgumentParser(prog="python -m experiments.hugging_face")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the solver, per budget")
    parser.add_argument(
        "--longer", type=float, default=60.0, metavar="S", help="the same for the smallest budget"
    )
    parser.add_argument("--out", type=Path, help="write the rows to this JSON file as they come")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.simplefilter("ignore")  # the library's own
    rows: list[Row] = []
    for name in options.models.split(","):
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(study(name, MODELS[name], options.seconds, options.longer))
        if options.out is not None:
            text = json.dumps(merged(options.out, rows), indent=1) + "\n"
            write_atomic(options.out, text.encode())
    if options.json:
        print(json.dumps([row.as_dict() for row in rows], indent=1))
    else:
        print("\n".join(table(rows)))
    wrong = [row.model for row in rows if row.ops > 0 and not row.exact]
    return 1 if wrong else 0


def merged(path: Path, rows: list[Row]) -> list[dict[str, Any]]:
    """The rows of the file and these, which replace those of their models."""
    there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    found = {row["model"]: row for row in [*there, *(row.as_dict() for row in rows)]}
    return [found[name] for name in MODELS if name in found]


def table(rows: list[Row]) -> list[str]:
    """The rows as text."""
    lines = [
        f"{'model':<20}{'family':<20}{'ops':>5}  {'result':<8}{'budget':>7}{'saved':>7}  predicted"
    ]
    for row in rows:
        start = f"{row.model:<20}{row.family:<20}"
        if row.ops < 0:
            lines.append(f"{start}{'':>5}  refused: {row.reason}")
            continue
        result = "exact" if row.exact else "DIFFERS"
        saved = f"{row.budget:>7}{f'{row.saved_percent:.0f}%':>7}"
        same = "measured" if row.predicted_bytes == row.replayed_bytes else "not measured"
        lines.append(f"{start}{row.ops:>5}  {result:<8}{saved}  {same} {row.reason}".rstrip())
    return lines


if __name__ == "__main__":
    sys.exit(main())
