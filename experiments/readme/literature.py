"""Tables of the studies of published experiments, for the README and for the studies' own pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.solver.units import format_bytes

from ..checkmate2020.batches import BOUND
from ..checkmate2020.batches import METHODS as BATCH_METHODS
from ..checkmate2020.batches import Row as BatchRow
from ..checkmate2020.ratios import ORDER, PAPER, ratios
from ..chen2016.__main__ import Results as ChenResults
from ..kusumoto2019.__main__ import Row as KusumotoRow
from ..papers.rows import read
from ..papers.trained import Row as TrainedRow
from .cells import markdown, name_of, percent
from .tables import best_others, compared, trained

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


# What the README's short tables show; the studies' own pages have every method.
SIZES = (("resnet", 50), ("resnet", 200), ("resnet", 1001), ("lstm", 8), ("lstm", 64))
TRAINED = ("treewidth", "greedy", "auto")
RATIOS = (
    "ap_sqrt_n", "ap_greedy", "revolve", "checkmate_lp", "linearized_greedy", "greedy", "rotor",
    "kusumoto", "dtr_eq",
)  # fmt: skip


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
    """Trained with: speed of a few methods."""
    path = studies / "kumar2019" / "results.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=list[TrainedRow])
    return trained([row for row in found if row.method in TRAINED])


def checkmate(studies: Path) -> str | None:
    """Ratios to the optimum of a few methods."""
    return _ratios(studies, RATIOS)


def every_ratio(studies: Path) -> str | None:
    """Ratios to the optimum of every method."""
    return _ratios(studies, None)


def _ratios(studies: Path, methods: Sequence[str] | None) -> str | None:
    found = read(studies / "checkmate2020" / "results.json")
    if found is None:
        return None
    by_subject = {subject: ratios(found.rows, subject) for subject in ORDER}
    if methods is None:
        methods = list(dict.fromkeys(m for one in by_subject.values() for m in one))
    rows = []
    for method in methods:
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
        for method in (*BATCH_METHODS, BOUND):
            row = here.get(method)
            paper = "" if row is None or row.published is None else f" [{row.published}]"
            cells.append("" if row is None else f"{row.batch}{paper}")
        rows.append(cells)
    return markdown(("network", *(name_of(m) for m in (*BATCH_METHODS, BOUND))), rows)


def chen(studies: Path) -> str | None:
    """Memory and time against depth and length, of the smallest and the largest."""
    return _sizes(studies, SIZES)


def every_size(studies: Path) -> str | None:
    """Memory and time against depth and length."""
    return _sizes(studies, None)


def _sizes(studies: Path, sizes: Sequence[tuple[str, int]] | None) -> str | None:
    path = studies / "chen2016" / "results.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=ChenResults)
    rows = []
    places = {(row.network, row.size) for row in found.planned}
    for network, size in sorted(places, key=lambda place: (place[0] == "lstm", place[1])):
        if sizes is not None and (network, size) not in sizes:
            continue
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


def chen_trained(studies: Path) -> str | None:
    """The narrow network that was really trained."""
    path = studies / "chen2016" / "results.json"
    if not path.exists():
        return None
    rows = [
        [
            name_of(row.method), format_bytes(row.predicted_bytes or 0),
            format_bytes(row.measured_bytes or 0), percent(row.predicted_overhead, 1),
            percent(row.measured_overhead, 1), "yes" if row.equal else "NO",
        ]
        for row in msgspec.json.decode(path.read_bytes(), type=ChenResults).trained
    ]  # fmt: skip
    head = ("method", "peak", "measured", "extra time", "measured", "bits of plain PyTorch")
    return markdown(head, rows)


def monet(studies: Path) -> str | None:
    """MONeT's graphs: lowtide and the best of the others."""
    found = read(studies / "monet2021" / "results.json")
    if found is None:
        return None
    return best_others(found.rows, ("10 GiB", "9", "8", "7", "6", "5 (VGG-16: 5.5)"))


def moccasin(studies: Path) -> str | None:
    """Moccasin's graphs: lowtide and the best of the others."""
    found = read(studies / "moccasin2023" / "results.json")
    return None if found is None else best_others(found.rows, ("90%", "80%", "70%"))


def every_method(study: str) -> Callable[[Path], str | None]:
    """The table of a study's own page."""

    def make(studies: Path) -> str | None:
        found = read(studies / study / "results.json")
        return None if found is None else compared(found.rows)

    return make


def every_trained(studies: Path) -> str | None:
    """Every method that was trained with."""
    path = studies / "kumar2019" / "results.json"
    if not path.exists():
        return None
    return trained(msgspec.json.decode(path.read_bytes(), type=list[TrainedRow]))


LITERATURE: dict[str, Callable[[Path], str | None]] = {
    "chen2016": chen,
    "kumar2019": kumar,
    "checkmate2020": checkmate,
    "batches": batches,
    "kusumoto2019": kusumoto,
    "monet2021": monet,
    "moccasin2023": moccasin,
}
# Of the pages of the studies: folder and name.
PAGES: dict[tuple[str, str], Callable[[Path], str | None]] = {
    ("chen2016", "results"): every_size,
    ("chen2016", "trained"): chen_trained,
    ("checkmate2020", "results"): every_method("checkmate2020"),
    ("checkmate2020", "ratios"): every_ratio,
    ("checkmate2020", "batches"): batches,
    ("compare", "results"): every_method("compare"),
    ("kumar2019", "results"): every_trained,
    ("kusumoto2019", "results"): kusumoto,
    ("moccasin2023", "results"): every_method("moccasin2023"),
    ("monet2021", "results"): every_method("monet2021"),
}
