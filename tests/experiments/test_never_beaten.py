"""In the results that are kept, no method is ahead of lowtide anywhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from experiments.checkmate2020.batches import BOUND
from experiments.checkmate2020.batches import Row as BatchRow
from experiments.chen2016.__main__ import Results as ChenResults
from experiments.kusumoto2019.__main__ import Row as SmallestRow
from experiments.papers.rows import Row, read
from experiments.papers.trained import Row as TrainedRow

STUDIES = Path(__file__).resolve().parents[2] / "experiments"
COMPARED = ("checkmate2020", "monet2021", "moccasin2023", "compare")


def ahead(rows: list[Row]) -> list[str]:
    """Where a method has a plan that `auto` has none for, or a faster one."""
    best = {(r.subject, r.budget_bytes): r.overhead for r in rows if r.method == "auto"}
    found = []
    for row in rows:
        mine = best[row.subject, row.budget_bytes]
        if row.overhead is not None and (mine is None or row.overhead < mine):
            found.append(f"{row.subject}, {row.budget}: {row.method} {row.overhead}, auto {mine}")
    return found


@pytest.mark.parametrize("name", COMPARED)
def test_no_method_is_faster_at_any_budget(name: str) -> None:
    """Nor has one a plan where `auto` has none; a plan within a budget has its peak within it."""
    found = read(STUDIES / name / "results.json")
    assert found is not None
    assert len({row.method for row in found.rows}) > 15
    assert ahead(found.rows) == []
    for row in found.rows:
        assert (row.peak_bytes is None) == (row.overhead is None)
        assert row.peak_bytes is None or row.peak_bytes <= row.budget_bytes
        assert row.overhead is not None or row.reason, f"{row.method} says nothing"


def test_what_is_ahead_is_seen() -> None:
    """A faster plan, and one where `auto` has none."""

    def row(method: str, budget: int, overhead: float | None) -> Row:
        return Row("s", 9, str(budget), budget, method, "", "", None, overhead, None, 0.1)

    rows = [row("auto", 9, 0.1), row("rotor", 9, 0.09), row("lru", 9, 0.1), row("lru", 8, 0.3)]
    assert [text.split(":")[0] for text in ahead([*rows, row("auto", 8, None)])] == [
        "s, 9", "s, 8",
    ]  # fmt: skip


def test_no_method_is_predicted_faster_among_trained_plans() -> None:
    """The plans that were replayed: bits of plain PyTorch, the predicted peak, never behind."""
    trained = msgspec.json.decode(
        (STUDIES / "kumar2019" / "results.json").read_bytes(), type=list[TrainedRow]
    )
    assert trained
    assert chen().trained
    trained += chen().trained
    best = {
        (row.model, row.budget_bytes): row.predicted_overhead
        for row in trained
        if row.method == "auto"
    }
    for row in trained:
        assert row.equal is not False
        assert row.measured_bytes == row.predicted_bytes, row
        if row.predicted_overhead is not None:
            mine = best[row.model, row.budget_bytes]
            assert mine is not None, row
            assert mine <= row.predicted_overhead, row


def chen() -> ChenResults:
    """Networks of many layers."""
    return msgspec.json.decode((STUDIES / "chen2016" / "results.json").read_bytes(),
                               type=ChenResults)  # fmt: skip


def test_no_plan_of_chen_is_faster_within_the_memory_of_sqrt_n() -> None:
    """Neither sqrt(n) nor a recursion that takes no more memory."""
    rows = chen().planned
    mine = {(r.network, r.size): r for r in rows if r.method == "lowtide, memory of sqrt_n"}
    allowed = {(r.network, r.size): r.peak_bytes or 0 for r in rows if r.method == "sqrt_n"}
    assert mine.keys() == allowed.keys() != set()
    for row in rows:
        where = (row.network, row.size)
        if row.peak_bytes is not None and row.peak_bytes <= allowed[where]:
            assert (mine[where].overhead or 0.0) <= (row.overhead or 0.0), row


def test_no_method_reaches_less_memory() -> None:
    """Of each network lowtide has the smallest peak, not below its bound, and the least time there.

    Time counts between methods that reach the same peak.
    """
    rows = msgspec.json.decode(
        (STUDIES / "kusumoto2019" / "results.json").read_bytes(), type=list[SmallestRow]
    )
    assert len({row.network for row in rows}) == 7
    for network in {row.network for row in rows}:
        here = [row for row in rows if row.network == network and row.peak_bytes is not None]
        (mine,) = (row for row in here if row.method == "lowtide")
        assert mine.peak_bytes == min(row.peak_bytes or 0 for row in here), network
        for row in here:
            if row.peak_bytes == mine.peak_bytes:
                assert (mine.overhead or 0.0) <= (row.overhead or 0.0), row
        assert mine.bound_bytes is not None
        assert mine.bound_bytes <= (mine.peak_bytes or 0)


def test_no_method_trains_a_larger_batch() -> None:
    """Batches in 16 GB, and none is larger than any schedule allows."""
    rows = msgspec.json.decode(
        (STUDIES / "checkmate2020" / "batches.json").read_bytes(), type=list[BatchRow]
    )
    for network in {row.network for row in rows}:
        batch = {row.method: row.batch for row in rows if row.network == network}
        bound = batch.pop(BOUND)
        assert batch["auto"] == max(batch.values())
        assert batch["auto"] <= bound
