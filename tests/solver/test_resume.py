"""Interrupted comparisons and sweeps go on where they ended; rows can run on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lowtide.frontends.chains import transformer
from lowtide.solver import compare as module
from lowtide.solver.compare import Row, compare
from lowtide.solver.comparison import INFEASIBLE
from lowtide.solver.errors import InputError
from lowtide.solver.store import Store
from lowtide.solver.sweep import sweep

if TYPE_CHECKING:
    import threading
    from pathlib import Path

GRAPH = transformer(2)
METHODS = ("sqrt_n", "greedy", "rotor")


def test_finished_rows_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after two rows: the second run makes the others only, and the result is whole."""
    real = module.run_method
    made: list[str] = []

    def counting(*args: object, **kwargs: object) -> Row:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(str(args[3]))
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "run_method", counting)
    first = compare(GRAPH, ["60%"], METHODS, resume=tmp_path)
    assert first.interrupted
    assert [row.method for row in first.rows] == ["sqrt_n", "greedy"]
    made.clear()
    second = compare(GRAPH, ["60%"], METHODS, resume=tmp_path)
    assert made == ["rotor"]
    assert not second.interrupted
    assert [row.method for row in second.rows] == list(METHODS)
    assert second.rows[:2] == first.rows


def test_a_refusal_after_ctrl_c_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may be behind it: the comparison ends there, and the row is made again next time."""

    def refused(*args: object, interrupt: threading.Event, **kwargs: object) -> Row:
        interrupt.set()
        return Row(str(args[3]), "60%", int(str(args[2])), INFEASIBLE, None, 0.0, "cut short")

    monkeypatch.setattr(module, "run_method", refused)
    found = compare(GRAPH, ["60%"], METHODS, resume=tmp_path)
    assert found.interrupted
    assert len(found.rows) == 1
    assert not list(tmp_path.iterdir())


def test_other_limits_times_and_broken_files_count_as_new(tmp_path: Path) -> None:
    """A row is only taken for what it was made for."""
    (row,) = compare(GRAPH, ["60%"], ["greedy"], resume=tmp_path).rows
    files = list(tmp_path.glob("*.row.json"))
    assert len(files) == 1
    same = Store(tmp_path, GRAPH, time_limit=60.0, gap=1e-4, threads=None, seed=0, backend="highs")
    assert same.get("greedy", "60%", row.budget_bytes) == row
    assert same.get("greedy", "60%", row.budget_bytes + 1) is None
    assert Store(tmp_path, GRAPH, seed=1).get("greedy", "60%", row.budget_bytes) is None
    slower = msgspec.structs.replace(
        GRAPH, ops=tuple(msgspec.structs.replace(op, time_ns=op.time_ns + 1) for op in GRAPH.ops)
    )
    compare(slower, ["60%"], ["greedy"], resume=tmp_path)
    assert len(list(tmp_path.glob("*.row.json"))) == 2
    files[0].write_text("{")
    assert same.get("greedy", "60%", row.budget_bytes) is None
    assert compare(GRAPH, ["60%"], ["greedy"], resume=tmp_path).rows[0].plan is not None


def test_sweeps_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sweep solves nothing, also where no plan exists, and gives the same curve."""
    from lowtide.solver import sweep as sweeping

    store = Store(tmp_path, GRAPH, seed=0)
    budgets = ["1%", "80%"]
    first = sweep(GRAPH, budgets, time_limit=5.0, store=store)

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("solved again")

    monkeypatch.setattr(sweeping, "solve", never)
    second = sweep(GRAPH, budgets, time_limit=5.0, store=store)
    assert [row.status for row in second.rows] == [row.status for row in first.rows]
    assert [row.overhead for row in second.rows] == [row.overhead for row in first.rows]
    assert first.rows[0].plan is None


@pytest.mark.parametrize(
    ("field", "value"), [("budget_bytes", 2**40), ("status", "feasible"), ("peak_bytes", 1)]
)
def test_rows_whose_plan_is_another_count_as_new(
    tmp_path: Path, field: str, value: int | str
) -> None:
    """Edited by hand: the sweep solves again, and the curve is the one it was."""
    store = Store(tmp_path, GRAPH, seed=0)
    (first,) = sweep(GRAPH, ["60%"], time_limit=5.0, moves=2000, gap=0.5, store=store).rows
    assert store.get("auto", "60%", first.budget_bytes) == first
    (file,) = tmp_path.glob("*.row.json")
    row = msgspec.json.decode(file.read_bytes())
    assert row["plan"][field] != value
    row["plan"][field] = value
    file.write_bytes(msgspec.json.encode(row))
    assert store.get("auto", "60%", first.budget_bytes) is None
    (again,) = sweep(GRAPH, ["60%"], time_limit=5.0, moves=2000, gap=0.5, store=store).rows
    assert again.plan is not None
    assert again.plan.budget_bytes == first.budget_bytes
    assert store.get("auto", "60%", first.budget_bytes) == again


def test_a_dask_cluster_gives_the_same_rows(tmp_path: Path) -> None:
    """Through a scheduler on this machine, by its address."""
    distributed = pytest.importorskip("distributed")
    here = compare(GRAPH, ["60%"], METHODS)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
    ):
        there = compare(
            GRAPH, ["60%"], METHODS, jobs=2, cluster="dask", address=cluster.scheduler_address,
            resume=tmp_path,
        )  # fmt: skip
    assert [row.overhead for row in there.rows] == [row.overhead for row in here.rows]
    assert len(list(tmp_path.glob("*.row.json"))) == len(METHODS)


def test_clusters_that_are_not_there() -> None:
    """One line that says what to do."""
    with pytest.raises(InputError, match="no cluster 'slurm'"):
        compare(GRAPH, ["60%"], METHODS, cluster="slurm")
    with pytest.raises(InputError, match="choose dask or ray"):
        compare(GRAPH, ["60%"], METHODS, jobs=2, address="tcp://localhost:1")
    with pytest.raises(InputError, match="choose dask or ray"):
        compare(GRAPH, ["60%"], ["greedy"], address="tcp://localhost:1")


def test_a_folder_that_cannot_be_written_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the first row."""

    def read_only(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with pytest.raises(InputError, match="Permission denied"):
        Store(tmp_path, GRAPH)
