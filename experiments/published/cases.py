"""What is compared: an instance, a budget, and what others published for exactly that.

Conventions of budgets: MONeT counts all memory in GiB; Moccasin and FastSA take a percentage of the
peak of the stored order (their graphs have no resident bytes); DTR's simulator takes a ratio of its
baseline memory, constants included, which published.json has in bytes. Checkmate asks for the
largest batch in 16e9 bytes at the cost of at most one more forward pass.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lowtide.solver.errors import InputError

from . import papers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lowtide.solver.graph import Graph

Kind = Literal["overhead", "batch"]
# Gurobi stopped within 0.01% of its objective, which counts times in units of 10 us.
MONET_TOLERANCE = 0.00015
ENDINGS = (".json.gz", ".json")


class Figure(msgspec.Struct, frozen=True):
    """What somebody published.

    Attributes
    ----------
    method
        Who.
    value
        Overhead as a fraction, or a batch; None where the method found nothing.
    met
        False where the budget was missed all the same.
    tolerance
        How far a value may lie from this one and still be called equal: half of the last printed
        digit, or what the method left open.
    bound
        Lower bound on the overhead, where published.
    seconds, note
        Time taken, and what else there is to know.
    """

    method: str
    value: float | None
    met: bool = True
    tolerance: float = 0.0
    bound: float | None = None
    seconds: float | None = None
    note: str = ""


class Case(msgspec.Struct, frozen=True):
    """One row to measure.

    Attributes
    ----------
    kind
        What is sought: the least overhead, or the largest batch.
    instance, budget
        Name of the file without its ending, and the budget as its authors write it.
    unit, amount
        `gib`, `percent` (of the peak of the stored order) or `bytes`; the batch of the instance
        for `batch`.
    implied
        The method had given up at a larger budget already.
    """

    kind: Kind
    instance: str
    budget: str
    unit: Literal["gib", "percent", "bytes", "batch"]
    amount: float
    figures: tuple[Figure, ...]
    implied: bool = False

    @property
    def name(self) -> str:
        """`instance @ budget`."""
        return f"{self.instance} @ {self.budget}"

    def budget_bytes(self, graph: Graph, peak_bytes: int) -> int:
        """Bytes, resident ones included."""
        if self.unit == "gib":
            return int(self.amount * 2**30)
        if self.unit == "percent":
            return int(peak_bytes * self.amount) // 100
        return int(self.amount)


def instances(folder: Path) -> tuple[str, ...]:
    """Names of the instance files of a folder, without their ending."""
    found = {
        path.name.removesuffix(ending)
        for ending in ENDINGS
        for path in folder.glob(f"*{ending}")
        if path.name != "published.json"
    }
    return tuple(sorted(found))


def path_of(folder: Path, instance: str) -> Path:
    """The file of an instance."""
    return next(p for e in ENDINGS if (p := folder / f"{instance}{e}").exists())


def read_published(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of published.json by the id of their source; empty where the file is missing.

    Raises
    ------
    InputError
        If the file is damaged.
    """
    path = folder / "published.json"
    if not path.exists():
        return {}
    try:
        document = msgspec.json.decode(path.read_bytes())
        return {source["id"]: source.get("rows", []) for source in document["sources"]}
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a list of published figures: {error}") from None


def all_cases(folder: Path) -> tuple[list[Case], list[tuple[str, str]]]:
    """Every comparable row, and (name, reason) for what is left out."""
    published = read_published(folder)
    present = instances(folder)
    cases: list[Case] = []
    cases += _monet(published)
    cases += _percentages(published, present)
    cases += _dtr(published)
    cases += _batches(published, present)
    skipped = [
        (name, "not in the folder")
        for name in dict.fromkeys(case.instance for case in cases)
        if name not in present
    ]
    cases = [case for case in cases if case.instance in present]
    compared = {case.instance for case in cases}
    for name in present:
        if name not in compared:
            reasons = (why for start, why in papers.NOT_COMPARABLE if name.startswith(start))
            skipped.append((name, next(reasons, "nothing published")))
    return cases, skipped


def select(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """Cases whose name matches one of the patterns; all of them without patterns."""
    if not patterns:
        return list(cases)
    return [c for c in cases if any(fnmatch(c.name, f"*{p}*") for p in patterns)]


def _monet(published: dict[str, list[dict[str, Any]]]) -> Iterator[Case]:
    """Checkmate's program as solved by Gurobi; logs first, else the recomputed solutions."""
    solved = {
        (row["model"], row["budget_gb"]): row
        for row in published.get("monet_zoo_checkmate_solutions_recomputed", [])
    }
    base = {model: row["no_recompute_10us"] for (model, _), row in solved.items()}
    figures: dict[tuple[str, float], Figure] = {}
    for row in published.get("monet_schedule_zoo_gurobi_logs", []):
        model = f"{row['model']}_{row['batch']}"
        key = (model, row["budget_gib"])
        seen = row["last_incumbent_bound_gap_in_log"] or (None, None, None)
        known = solved.get(key, {}).get("objective_10us")
        best = next((v for v in (row["objective_10us"], known, seen[0]) if v is not None), None)
        bound = max((b for b in (row["bound_10us"], seen[1]) if b is not None), default=None)
        if model in base:
            figures[key] = _gurobi(best, bound, base[model], row["seconds"], row["status"])
    for key, row in solved.items():
        if key not in figures:
            figures[key] = _gurobi(
                row["objective_10us"], None, base[key[0]], row["solve_time_s"], "solution only"
            )
    for (model, gib), figure in sorted(figures.items(), key=lambda it: (it[0][0], -it[0][1])):
        yield Case("overhead", f"monet_{model}_ckm", f"{gib:g} GiB", "gib", gib, (figure,))


def _gurobi(
    best: float | None, bound: float | None, base: float, seconds: float | None, status: str
) -> Figure:
    proven = status == "optimal_within_tolerance"
    return Figure(
        "Gurobi, Checkmate",
        None if best is None else best / base - 1,
        tolerance=MONET_TOLERANCE,
        bound=None if bound is None else bound / base - 1,
        seconds=seconds,
        note={True: "optimal", False: status.replace("_", " ")}[proven],
    )


def _percentages(
    published: dict[str, list[dict[str, Any]]], present: Sequence[str]
) -> Iterator[Case]:
    """The table of Moccasin and FastSA."""
    rows = published.get("moccasin_fastsa_tables", [])
    figures: dict[tuple[str, int], list[Figure]] = {}
    for row in rows:
        figures.setdefault((row["graph"], row["budget_percent"]), []).append(
            _printed(row["method"], row["overhead_percent"], row["seconds"], row["met"])
        )
    for graph, percent, overhead, seconds in papers.CHECKMATE if rows else ():
        figures.setdefault((graph, percent), []).append(
            _printed("Checkmate", overhead, seconds, True)
        )
    for (graph, percent), found in sorted(figures.items(), key=lambda it: (it[0][0], -it[0][1])):
        start = papers.MOCCASIN_GRAPHS[graph]
        instance = next((name for name in present if name.startswith(start)), start)
        yield Case("overhead", instance, f"{percent}%", "percent", percent, tuple(found))


def _printed(method: str, percent: float, seconds: float, met: bool) -> Figure:
    """A figure printed with one decimal, or two where the first would be 0."""
    digit = 0.1 if round(percent, 1) == percent else 0.01
    return Figure(method, percent / 100, met, digit / 200, seconds=seconds)


def _dtr(published: dict[str, list[dict[str, Any]]]) -> Iterator[Case]:
    """DTR's simulator, down to a tenth of the baseline whether it got there or not."""
    logs: dict[str, dict[float, list[Figure]]] = {}
    baseline: dict[str, int] = {}
    failed: dict[tuple[str, str], float] = {}
    for row in published.get("dtr_simulator_recomputed", []):
        model, batch = row["log"].split("-")[:2]
        name = f"dtr_{model}_{batch}"
        baseline[name] = row["baseline_memory"]
        overhead = row.get("overhead")
        method = {"DTREqClass": "DTR"}.get(row["heuristic"], row["heuristic"])
        found = logs.setdefault(name, {}).setdefault(row["ratio"], [])
        if overhead is not None and row["status"] == "ok":
            found.append(Figure(method, overhead - 1))
        else:
            why = {"OOM": "out of memory", "RematExceededError": "above 2x"}
            found.append(Figure(method, None, note=why.get(row["status"], row["status"])))
            failed[name, method] = row["ratio"]
    for name, ratios in sorted(logs.items()):
        for tenths in range(9, 0, -1):
            ratio = tenths / 10
            figures = list(ratios.get(ratio, ()))
            implied = (name, "DTR") in failed and ratio < failed[name, "DTR"]
            if implied:
                figures.append(Figure("DTR", None, note="gave up at a larger budget"))
            if figures:
                amount = int(baseline[name] * ratio)
                yield Case(
                    "overhead", name, f"ratio {ratio}", "bytes", amount, tuple(figures), implied
                )


def _batches(published: dict[str, list[dict[str, Any]]], present: Sequence[str]) -> Iterator[Case]:
    """Checkmate's largest batches: paper and artifact."""
    best: dict[str, Figure] = {}
    rows = published.get("checkmate_mlsys20_readme_max_batch", [])
    known = [
        (f"checkmate_flops_{row['model']}", row["max_batch"], row.get("status", ""))
        for row in rows
        if row["strategy"] == "CHECKMATE_ILP"
    ]
    known += [(name, batch, "figure 6") for name, batch in papers.MAX_BATCH] if rows else []
    for start, batch, note in known:
        if start not in best or batch > (best[start].value or 0):
            best[start] = Figure("Checkmate", batch, note=note)
    for start, figure in best.items():
        instance = next((name for name in present if name.startswith(f"{start}_b")), start)
        size = float(instance.rpartition("_b")[2]) if instance != start else 0
        yield Case("batch", instance, "16e9 B, cost of one forward", "batch", size, (figure,))
