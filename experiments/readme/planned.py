"""Tables of studies that plan and do not train: what integer programs gain, and depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.solver.units import format_bytes

from ..gain.study import AUTO, HEURISTICS, METHODS
from ..gain.study import Row as GainRow
from ..papers.keep import read_list
from ..scaling.study import Row as ScalingRow
from .cells import markdown, name_of, percent

if TYPE_CHECKING:
    from pathlib import Path

TITLES = {
    "gpt2": "GPT-2, 12 layers, 4 x 1024 tokens",
    "bert": "BERT-base, 8 x 512 tokens",
    "llama": "Llama shape, 16 layers, 4 x 2048 tokens",
    "resnet50": "ResNet-50, 64 images",
    "unet": "U-Net, 4 images",
    "mobilenetv2": "MobileNetV2, 64 images",
}


def gain(studies: Path) -> str | None:
    """Overheads of heuristics, of search alone and of lowtide at the same budgets."""
    rows = read_list(studies / "gain" / "results.json", GainRow)
    if not rows:
        return None
    found = {(row.model, row.budget, row.method): row for row in rows}
    lines = []
    before = ""
    for model, budget in dict.fromkeys((row.model, row.budget) for row in rows):
        here = {m: found[model, budget, m] for m in METHODS if (model, budget, m) in found}
        cells = ["" if model == before else TITLES.get(model, model), budget]
        for method in METHODS:
            row = here.get(method)
            value = None if row is None else row.overhead
            text = "cannot" if value is None else percent(value)
            cells.append(f"**{text}**" if method == AUTO else text)
        auto = here.get(AUTO)
        lines.append([*cells, "" if auto is None else percent(auto.bound)])
        before = model
    names = [name_of(method) for method in HEURISTICS]
    return markdown(("model", "budget", *names, "search alone", "lowtide", "lower bound"), lines)


def scaling(studies: Path) -> str | None:
    """Processor time, memory and overhead against depth."""
    rows = read_list(studies / "scaling" / "results.json", ScalingRow)
    if not rows:
        return None
    lines = []
    for row in rows:
        rivals = ["cannot" if it is None else percent(it, 1) for it in row.rivals.values()]
        lines.append(
            [
                f"{row.family}, {row.depth}", f"{row.ops:,}", f"{row.cpu_seconds:.1f} s",
                format_bytes(row.peak_bytes), format_bytes(row.planned_bytes),
                percent(row.overhead, 1), percent(row.gap, 1), *rivals,
            ]
        )  # fmt: skip
    head = (
        "network, layers", "operators", "processor time", "without recomputation", "planned",
        "overhead", "gap", *map(name_of, rows[0].rivals),
    )  # fmt: skip
    return markdown(head, lines)
