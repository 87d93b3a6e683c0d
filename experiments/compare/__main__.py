"""Every method that lowtide has on four steps, as `lowtide compare --methods all` runs them.

    python -m experiments.compare [--only PATTERN ...] [--methods M,M] [--time-limit S] [--json]

A chain of 32 layers (generated), GPT-2 with 12 layers, ResNet-50 and a U-Net (captured with fake
tensors, roofline times). Where a method has no plan, `results.json` says why in one line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lowtide.frontends.chains import linear_chain

from ..gain.models import graph_of
from ..papers.command import main
from ..papers.rows import Subject

BUDGETS = {
    "chain, 32 layers": ("60%", "40%", "25%"),
    "gpt2": ("60%", "40%", "25%"),
    "resnet50": ("60%", "40%", "25%"),
    "unet": ("80%", "60%", "40%"),
}


def subjects(graphs: Path | None) -> list[Subject]:
    """The four steps, captured when they are run."""
    captured = {
        name: lambda name=name: graph_of(name, graphs) for name in ("gpt2", "resnet50", "unet")
    }
    return [
        Subject(name, captured.get(name, lambda: linear_chain(32)), budgets, {})
        for name, budgets in BUDGETS.items()
    ]


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent, __doc__ or "", subjects, "all", time_limit=10.0))
