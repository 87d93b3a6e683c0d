"""One function a table: Markdown from the results of a study, None where it has none."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.solver.units import format_bytes

from ..ablation.study import Row as AblationRow
from ..ablation.study import losses
from ..pytorch.rows import read as read_compiled
from ..pytorch.show import COLUMNS as COMPILED_COLUMNS
from ..pytorch.show import cells as compiled_cells
from ..step_time.rows import Result as StepTime
from ..step_time.summary import summary
from ..step_time.table import HEAD as STEP_TIME_HEAD
from ..step_time.table import lines
from .cells import markdown, name_of, percent
from .families import hugging_face
from .literature import LITERATURE
from .planned import gain, scaling
from .timed import overhead, profile_quality

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WIDTH = 115  # of running text
TITLES = {
    "gpt": "GPT, 8 layers, dropout",
    "cnn": "CNN, 8 residual blocks, batch norm",
}


def demo(studies: Path) -> str | None:
    """What `make demo` measures."""
    path = studies / "demo" / "results" / "results.json"
    if not path.exists():
        return None
    rows: list[list[str]] = []
    models: list[dict[str, Any]] = json.loads(path.read_text())
    for model in models:
        rows.append([f"**{TITLES.get(model['model'], model['model'])}**", *[""] * 5])
        for row in model["rows"]:
            first = row["method"] == "keep_everything"
            cells = ["none" if first else format_bytes(row["budget_bytes"]), name_of(row["method"])]
            if row["predicted_peak_bytes"] is None:
                rows.append([*cells, "cannot", "", "", ""])
                continue
            rows.append(
                [
                    *cells,
                    format_bytes(row["predicted_peak_bytes"]),
                    percent(row["predicted_overhead"]),
                    percent(row["measured_overhead"], 1),
                    percent(row["lower_bound_overhead"]),
                ]
            )
    head = ("budget", "method", "peak", "predicted", "measured", "lower bound")
    return markdown(head, rows)


def ablation(studies: Path) -> str | None:
    """What the results lose without each technique of `auto`."""
    path = studies / "ablation" / "results.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=list[AblationRow])
    rows = []
    for name, pairs in losses(found):
        lost = sum(
            full.overhead is not None and without.overhead is None for full, without in pairs
        )
        both = [(a, b) for a, b in pairs if a.overhead is not None and b.overhead is not None]
        cells = [f"`{name}`", str(len(pairs))]
        for key in ("overhead", "gap"):
            grown = [100 * ((getattr(b, key) or 0.0) - (getattr(a, key) or 0.0)) for a, b in both]
            if not grown:
                cells += ["", ""]
                continue
            worst = max(range(len(grown)), key=grown.__getitem__)
            row = both[worst][1]
            cells.append(f"{sum(grown) / len(grown):+.2f}")
            cells.append(f"{grown[worst]:+.2f} ({row.graph} at {row.budget})")
        longer = sorted(b.seconds / a.seconds for a, b in both if a.seconds > 0)
        cells.append(f"{longer[len(longer) // 2]:.2f}, {longer[-1]:.2f}" if longer else "")
        rows.append([*cells, str(lost) if lost else ""])
    head = (
        "left out", "rows", "overhead, points", "worst row", "gap, points", "worst row",
        "times as long: median, worst", "plans lost",
    )  # fmt: skip
    return markdown(head, rows)


def step_time(studies: Path) -> str | None:
    """Peaks and times against PyTorch's own checkpoints and budget."""
    path = studies / "step_time" / "results.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=list[StepTime])
    table = markdown(STEP_TIME_HEAD, lines(found))
    below = textwrap.fill(" ".join(summary(found)), WIDTH)
    return f"{table}\n\n{below}" if below else table


def pytorch(studies: Path) -> str | None:
    """Compiled steps at the peaks of PyTorch's own budget."""
    path = studies / "pytorch" / "results.json"
    if not path.exists():
        return None
    return markdown(COMPILED_COLUMNS, compiled_cells(read_compiled(path)))


BLOCKS: dict[str, Callable[[Path], str | None]] = {
    "ablation": ablation,
    "demo": demo,
    "gain": gain,
    "scaling": scaling,
    "step_time": step_time,
    "hugging_face": hugging_face,
    "pytorch": pytorch,
    "overhead": overhead,
    "profile_quality": profile_quality,
    **LITERATURE,
}
