"""Many steps of a small GPT with dropout under a tight budget, resumed in the middle.

    python -m experiments.soak [--steps N] [--budget B] [--json] > experiments/soak/results.json

Run it in the repository: the model is one of the tests'. AdamW, every step on a batch of its own.
Halfway the state of module, optimizer and random generator is saved; a fresh module takes it up.
Losses and last parameters must have the bits of a plain run, and memory must be flat with the
garbage collector off: from step 10 of each part on, every step takes the same peak and leaves
nothing behind. Ends with 1 if not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import torch

from lowtide.solver.units import format_bytes
from tests.models import make

from .study import Result, study


def main(argv: list[str] | None = None) -> int:
    """Print what was seen; with `--json`, one document."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=500, help="training steps, from 20 on")
    parser.add_argument("--budget", default="40%", help="as `fit` takes it")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for the plan")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    found = study(
        lambda: make("gpt", seeded=False), steps=options.steps, budget=options.budget,
        time_limit=options.time_limit,
    )  # fmt: skip
    if options.json:
        print(json.dumps({**asdict(found), "ok": found.ok}, indent=1))
    else:
        print("\n".join(report(found)))
    return 0 if found.ok else 1


def report(found: Result) -> list[str]:
    """Lines of text."""
    return [
        f"{found.steps} steps, resumed at {found.resumed_at}: "
        f"{found.equal_losses} losses equal plain PyTorch's in every bit "
        f"({found.first_loss:.4f} to {found.last_loss:.4f}), "
        f"parameters {'equal' if found.equal_parameters else 'DIFFER'}",
        f"peak {format_bytes(found.measured_bytes)} measured, "
        f"{found.measured_bytes - found.predicted_bytes:+} B from the prediction; budget "
        f"{format_bytes(found.budget_bytes)}, without recomputation "
        f"{format_bytes(found.plain_bytes)}",
        f"{found.recomputed} ops run again, {found.random_again} of them random",
        f"steps take {' and '.join(map(str, found.settled_bytes))} B at step 10 of the parts, "
        f"{found.highest_bytes} B at most later, and leave {found.growth_bytes} B behind",
    ]


if __name__ == "__main__":
    sys.exit(main())
