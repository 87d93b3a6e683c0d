"""One function a table: Markdown from the results of a study, None where it has none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from lowtide.solver.units import format_bytes

from ..ablation.study import Row as AblationRow
from ..ablation.study import losses
from ..checkmate2020.batches import METHODS as BATCH_METHODS
from ..checkmate2020.batches import Row as BatchRow
from ..checkmate2020.ratios import ORDER, PAPER, ratios
from ..chen2016.__main__ import Results as ChenResults
from ..kusumoto2019.__main__ import Row as KusumotoRow
from ..papers.rows import read
from ..papers.trained import Row as TrainedRow
from ..pytorch.rows import read as read_compiled
from ..pytorch.show import COLUMNS as COMPILED_COLUMNS
from ..pytorch.show import cells as compiled_cells
from ..step_time.rows import Result as StepTime
from ..step_time.table import HEAD as STEP_TIME_HEAD
from ..step_time.table import lines
from .cells import markdown, name_of, percent
from .planned import gain, scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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


def kusumoto(studies: Path) -> str | None:
    """Smallest memory of each network."""
    path = studies / "kusumoto2019" / "results.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=list[KusumotoRow])
    columns = ("sqrt_n", "kusumoto", "rotor", "lowtide")
    rows = []
    for network in dict.fromkeys(row.network for row in found):
        here = {row.method: row for row in found if row.network == network}
        base = here["keep_everything"]
        cells = [f"{network}, {base.batch}", f"{base.base_bytes / 1e9:.1f}"]
        for method in columns:
            row = here.get(method)
            if row is None or row.peak_bytes is None:
                cells.append("n/a")
                continue
            share = percent(row.peak_bytes / row.base_bytes, 0)
            cells.append(f"{row.peak_bytes / 1e9:.2f} ({share}, +{percent(row.overhead, 0)})")
        bound = here["lowtide"].bound_bytes if "lowtide" in here else None
        cells.append("" if bound is None else f"{bound / 1e9:.2f}")
        paper = [r.published_gb for m in ("sqrt_n", "kusumoto", "kusumoto_exact")
                 if (r := here.get(m)) is not None]  # fmt: skip
        whole = base.published_gb
        best = min((p for p in paper if p is not None), default=None)
        known = best is not None and whole is not None
        cells.append(f"{best} ({percent((best or 0) / (whole or 1), 0)})" if known else "")
        rows.append(cells)
    head = (
        "network, batch", "GB", "sqrt(n)", "Kusumoto", "rotor", "**lowtide**", "lower bound",
        "paper's best",
    )  # fmt: skip
    return markdown(head, rows)


def kumar(studies: Path) -> str | None:
    """Trained with: peak and speed of every method."""
    path = studies / "kumar2019" / "results.json"
    if not path.exists():
        return None
    return _trained(msgspec.json.decode(path.read_bytes(), type=list[TrainedRow]))


def _trained(found: Sequence[TrainedRow]) -> str:
    rows = []
    budgets = {row.model: list(dict.fromkeys(
        r.budget_bytes for r in found if r.model == row.model)) for row in found}  # fmt: skip
    for model in budgets:
        for method in dict.fromkeys(row.method for row in found if row.model == model):
            cells = [model, name_of(method)]
            for amount in budgets[model]:
                row = next(
                    r
                    for r in found
                    if (r.model, r.method, r.budget_bytes) == (model, method, amount)
                )
                if row.predicted_overhead is None:
                    cells.append("cannot" if row.status == "infeasible" else "n/a")
                else:
                    cells.append(
                        f"{percent(row.predicted_overhead, 1)}, {percent(row.measured_overhead, 1)}"
                    )
            rows.append(cells)
    width = max(len(b) for b in budgets.values())
    shares = ("70%", "50%", "30%")[:width] if width <= 3 else tuple(str(i) for i in range(width))
    return markdown(("model", "method", *(f"{s}: predicted, measured" for s in shares)), rows)


def checkmate(studies: Path) -> str | None:
    """Ratios to the optimum, and the largest batches."""
    found = read(studies / "checkmate2020" / "results.json")
    if found is None:
        return None
    by_subject = {subject: ratios(found.rows, subject) for subject in ORDER}
    rows = []
    for method in dict.fromkeys(m for one in by_subject.values() for m in one):
        cells = [name_of(method)]
        for subject in ORDER:
            value = by_subject[subject].get(method)
            cells.append("-" if value is None else f"{value[0]:.3f} ({value[1]} of {value[2]})")
        rows.append([*cells, ", ".join(PAPER.get(method, ()))])
    return markdown(("method", "MobileNet", "VGG-16", "U-Net", "paper, its own costs"), rows)


def batches(studies: Path) -> str | None:
    """Largest batches within 16 GB."""
    path = studies / "checkmate2020" / "batches.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=list[BatchRow])
    rows = []
    for network in dict.fromkeys(row.network for row in found):
        here = {row.method: row for row in found if row.network == network}
        cells = [network]
        for method in BATCH_METHODS:
            row = here.get(method)
            paper = "" if row is None or row.published is None else f" [{row.published}]"
            cells.append("" if row is None else f"{row.batch}{paper}")
        rows.append(cells)
    return markdown(("network", *(name_of(m) for m in BATCH_METHODS)), rows)


def chen(studies: Path) -> str | None:
    """Memory and time against depth and length."""
    path = studies / "chen2016" / "results.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=ChenResults)
    rows = []
    for network, size in dict.fromkeys((row.network, row.size) for row in found.planned):
        here = [r for r in found.planned if (r.network, r.size) == (network, size)]
        cells = [f"{network} {size} ({here[0].ops:,} ops)"]
        for row in here:
            memory = "-" if row.peak_bytes is None else format_bytes(row.peak_bytes)
            cells.append(f"{memory}, +{percent(row.overhead, 1)}" if row.overhead else memory)
        rows.append(cells + [""] * (8 - len(cells)))
    head = (
        "network", "memory of its own for each result", "planner of section 3", "freed at once",
        "sqrt(n)", "log(n)", "lowtide, memory of sqrt(n)", "lowtide, +30%",
    )  # fmt: skip
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
    return markdown(STEP_TIME_HEAD, lines(found))


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
    "chen2016": chen,
    "kumar2019": kumar,
    "checkmate2020": checkmate,
    "batches": batches,
    "kusumoto2019": kusumoto,
    "pytorch": pytorch,
}
