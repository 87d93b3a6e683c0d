"""Tables of comparisons: every method at every budget, or lowtide and the best of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.solver.units import format_bytes

from ..papers.show import cell
from .cells import markdown, name_of, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..papers.rows import Row
    from ..papers.trained import Row as TrainedRow

NICE = {
    "monet_mobilenet_v2_272_ckm": "MobileNetV2, 272 images",
    "monet_resnet50_184_ckm": "ResNet-50, 184",
    "monet_un_11_ckm": "U-Net, 11",
    "monet_vgg16_176_ckm": "VGG-16, 176",
    "moccasin_fcn_8_vgg_MLSys_32_416_608_3_train": "CM1, FCN-8",
    "moccasin_ResNet50_MLSys_256_224_224_3_train": "CM2, ResNet-50",
    "moccasin_random_layered_n100_w0.27_nlv0.75_ed0.2_scd0.14": "RL1",
    "moccasin_random_layered_n250_w0.43_nlv0.75_ed0.2_scd0.14": "RL2",
    "moccasin_random_layered_n1000_w0.31_nlv0.75_ed0.2_scd0.14": "RL4",
}


def budgets_of(rows: Sequence[Row], subject: str) -> dict[int, str]:
    """Budgets in bytes, and as they were written."""
    return {row.budget_bytes: row.budget for row in rows if row.subject == subject}


def compared(rows: Sequence[Row]) -> str:
    """For each subject a table with a line a method and a column a budget."""
    blocks = []
    for subject in dict.fromkeys(row.subject for row in rows):
        here = [row for row in rows if row.subject == subject]
        budgets = budgets_of(rows, subject)
        lines = []
        for method in dict.fromkeys(row.method for row in here):
            found = {row.budget_bytes: row for row in here if row.method == method}
            lines.append([name_of(method), *(cell(found.get(amount)) for amount in budgets)])
        bounds = [
            max((r.bound for r in here if r.budget_bytes == amount and r.bound is not None),
                default=None)
            for amount in budgets
        ]  # fmt: skip
        lines.append(["lower bound", *(percent(bound) for bound in bounds)])
        # Random layered graphs count in units, not in bytes.
        head = [
            text if text.isdigit() and amount < 2**20
            else format_bytes(amount) if text.isdigit() else f"{text} ({format_bytes(amount)})"
            for amount, text in budgets.items()
        ]  # fmt: skip
        title = f"{NICE.get(subject, subject)} ({here[0].ops} ops)"
        blocks.append(markdown((title, *head), lines))
    return "\n\n".join(blocks)


def best_others(rows: Sequence[Row], shares: Sequence[str]) -> str:
    """A line a subject: at each budget lowtide, and the fastest of the other methods."""
    lines = []
    for subject in dict.fromkeys(row.subject for row in rows):
        cells = [NICE.get(subject, subject)]
        for amount in budgets_of(rows, subject):
            here = [r for r in rows if (r.subject, r.budget_bytes) == (subject, amount)]
            mine = next(row for row in here if row.method == "auto")
            others = [
                (row.overhead, row.method)
                for row in here
                if row.method != "auto" and row.overhead is not None
            ]
            if mine.overhead is None:
                cells.append("none")
                continue
            star = r"\*" if mine.status == "optimal" else ""
            text = f"**{percent(mine.overhead)}**{star}, "
            if not others:
                cells.append(f"{text}none")
                continue
            overhead, method = min(others)
            cells.append(f"{text}{percent(overhead)} {name_of(method)}")
        lines.append(cells)
    return markdown(("graph", *shares), lines)


def trained(found: Sequence[TrainedRow]) -> str:
    """Predicted and measured extra time of every plan."""
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
