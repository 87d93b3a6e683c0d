"""The command line that the examples share."""

from __future__ import annotations

import argparse


def options(doc: str | None) -> argparse.Namespace:
    """`steps` and `budget`; the budget `none` is None: train without lowtide."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument(
        "--budget", default="60%", help="6GiB, bytes or a percentage; none: plain PyTorch"
    )
    found = parser.parse_args()
    if found.budget == "none":
        found.budget = None
    return found
