"""Which models of Hugging Face transformers replay exactly, and what a plan at 50% saves.

    python -m experiments.hugging_face [--models NAME,...] [--seconds S] [--out FILE] [--json]

Every row is one model, built small from its configuration with random weights and trained two
steps with AdamW, plainly and by a plan. `saved` compares the measured peaks of a step, without what
is resident; `predicted` says whether the plan's peak is the measured one to the byte. The budget is
50%, or the next of 60, 70, 80 and 100 for which a plan is found. `results.json` is what `--out`
writes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

import torch

from .models import MODELS
from .study import Row, study


def main(arguments: list[str] | None = None) -> int:
    """Run the study; 1 if a model is neither exact nor refused."""
    parser = argparse.ArgumentParser(prog="python -m experiments.hugging_face")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the solver, per model")
    parser.add_argument("--out", type=Path, help="write the rows to this JSON file as they come")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.simplefilter("ignore")  # the library's own
    rows: list[Row] = []
    for name in options.models.split(","):
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(study(name, MODELS[name], options.seconds))
        if options.out is not None:
            part = options.out.with_suffix(".part")
            part.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
            part.replace(options.out)
    if options.json:
        print(json.dumps([row.as_dict() for row in rows], indent=1))
    else:
        print("\n".join(table(rows)))
    wrong = [row.model for row in rows if row.ops > 0 and not row.exact]
    return 1 if wrong else 0


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
