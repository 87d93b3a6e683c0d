"""Checkmate's figures (Jain et al., MLSys 2020) on networks captured by lowtide.

    python -m experiments.checkmate2020 [--only PATTERN ...] [--methods M,M] [--time-limit S]
    python -m experiments.checkmate2020.ratios      table 2: time of each heuristic over the optimum
    python -m experiments.checkmate2020.batches     figure 6: largest batch in 16 GB

Overhead against budget (figure 5) for VGG-16 at batch 256, MobileNet at 512 and U-Net at 32, as in
the paper; fake tensors, roofline times.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..models.steps import graph_of
from ..monet2021.__main__ import METHODS
from ..papers.command import main
from ..papers.rows import Subject

SUBJECTS = {"vgg16": 256, "mobilenet": 512, "unet": 32}
BUDGETS = ("90%", "80%", "70%", "60%", "50%", "40%", "30%")


def subjects(graphs: Path | None) -> list[Subject]:
    """The three networks, captured when they are run."""
    return [
        Subject(
            f"{name} b{batch}",
            lambda name=name, batch=batch: graph_of(name, batch, graphs),  # type: ignore[misc]
            BUDGETS,
            {},
        )
        for name, batch in SUBJECTS.items()
    ]


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent, __doc__ or "", subjects, METHODS, time_limit=10.0))
