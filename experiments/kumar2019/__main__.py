"""Schedules from treewidth and pathwidth beside the rest, with measured training speed.

    python -m experiments.kumar2019 [--only MODEL ...] [--time-limit S] [--repeats N] [--json]

Kumar et al. (NeurIPS 2019) report memory; how fast training then is was what their reviewers asked
for. Four small models are captured with measured times, planned at 70%, 50% and 30% of what can be
saved, replayed and measured on the CPU: peak by the allocator's events, processor time of a step
against plain PyTorch, steps in turns.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from lowtide.solver.files import write_atomic

from ..demo.models import Cnn, Gpt
from ..models.classifiers import resnet
from ..models.segmenters import UNet
from ..models.steps import WithLoss
from ..papers.command import tell
from ..papers.panels import Point, panels
from ..papers.trained import Row, table, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

METHODS = (
    "keep_everything", "treewidth", "pathwidth", "sqrt_n", "log_n", "per_block", "greedy", "rotor",
    "kusumoto", "dtr_eq", "auto",
)  # fmt: skip
BUDGETS = ("70%", "50%", "30%")


def gpt() -> tuple[nn.Module, list[Any]]:
    """Four layers of width 128, 8 x 128 bytes of text."""
    return Gpt(layers=4), [(torch.randint(0, 256, (8, 129)),) for _ in range(2)]


def cnn() -> tuple[nn.Module, list[Any]]:
    """Eight residual blocks with batch norm."""
    return Cnn(), [(torch.randn(16, 1, 32, 32), torch.randint(0, 26, (16,))) for _ in range(2)]


def bottlenecks() -> tuple[nn.Module, list[Any]]:
    """A narrow ResNet-50, 8 images of 64 x 64."""
    model = WithLoss(resnet((3, 4, 6, 3), classes=10, width=8))
    return model, [(torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))) for _ in range(2)]


def unet() -> tuple[nn.Module, list[Any]]:
    """A narrow U-Net with batch norm, 4 images of 64 x 64."""
    model = WithLoss(UNet(width=12, levels=3, norm=True))
    labels = [torch.randint(0, 2, (4, 64, 64)) for _ in range(2)]
    return model, [(torch.randn(4, 3, 64, 64), label) for label in labels]


MODELS: dict[str, Callable[[], tuple[nn.Module, list[Any]]]] = {
    "gpt": gpt,
    "cnn": cnn,
    "resnet50": bottlenecks,
    "unet": unet,
}


def main(argv: list[str] | None = None) -> int:
    """Measure the chosen models and write results.json."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.kumar2019",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--methods", default=",".join(METHODS), metavar="M,M,...")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S", help="each plan")
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="timed steps of each")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for name in options.only:
        torch.manual_seed(0)
        model, batches = MODELS[name]()
        rows += train(
            name, model, batches, options.methods.split(","), lambda _: BUDGETS,
            time_limit=options.time_limit, repeats=options.repeats, tell=tell,
        )  # fmt: skip
    text = msgspec.json.format(msgspec.json.encode(rows), indent=1)
    write_atomic(options.out / "results.json", text + b"\n")
    draw(rows, options.out)
    print(text.decode() if options.json else table(rows))
    return 0 if all(row.equal is not False for row in rows) else 1


def draw(rows: list[Row], folder: Path) -> None:
    """Measured extra time against measured peak, a panel for each model."""
    points = [
        Point(row.model, row.method, row.measured_bytes / 2**20, 100 * row.measured_overhead)
        for row in rows
        if row.measured_bytes is not None and row.measured_overhead is not None
    ]
    panels(
        points, folder / "measured.svg", "measured peak, MiB", "measured extra time, %",
        logarithmic=False,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
