"""Plans are kept on disk under a digest of all that they depend on."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lowtide.runtime.plans import plan_cache
from lowtide.runtime.plans.plan_cache import Solving, adapted, plan_key, solve_cached
from lowtide.solver.compiled import NOTE
from lowtide.solver.files import read_plan, write_plan
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.plan import Stop
from lowtide.solver.progress import Event
from lowtide.solver.schedule import Schedule
from lowtide.solver.version import versions

from ...plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.solver.plan import Plan

SETTINGS = Solving(time_limit=5.0, seed=0, threads=1)


def _graph(size: int = 10, *, count: int = 4, time_ns: int = 5) -> Graph:
    """A chain."""
    ops = tuple(
        Op(f"op{i}", "f", time_ns, inputs=(i - 1,) if i else (), outputs=(i,), phase="forward")
        for i in range(count)
    )
    tensors = tuple(Tensor(f"t{i}", size, spec=f"f32[{size}]") for i in range(count))
    return Graph("chain", ops, tensors)


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the solver, which keeps everything."""
    calls: list[Any] = []

    def solve(
        graph: Graph, budget: int, *, start: Any = None, progress: Any = None, **settings: Any
    ) -> Plan:
        calls.append(settings)
        stop = Stop.INTERRUPTED if budget == 999 else Stop.DONE
        keep = Schedule.keep_everything(graph)
        return plan_of(graph, keep, budget_bytes=budget, stopped_by=stop)

    monkeypatch.setattr(plan_cache, "solve", solve)
    return calls


def _file(folder: Path, graph: Graph, budget: int = 100) -> Path:
    return folder / f"{plan_key(graph, budget, SETTINGS)}.plan.json.gz"


def test_a_slow_compilation_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The note of the first solve on a machine is logged, and nothing else of the solve."""

    def solve(graph: Graph, budget: int, *, progress: Any, **_: Any) -> Plan:
        for note in (NOTE, "local search"):
            progress.update(Event(0.0, None, None, 1, note))
        return plan_of(graph, Schedule.keep_everything(graph), budget_bytes=budget)

    monkeypatch.setattr(plan_cache, "solve", solve)
    solve_cached(_graph(), 100, SETTINGS, folder=tmp_path)
    assert caplog.messages == [f"lowtide: {NOTE}"]


def test_the_second_solve_is_a_read(tmp_path: Path, solves: list[Any]) -> None:
    """The same graph, budget and settings are solved once; the file is an ordinary plan."""
    graph = _graph()
    plan, cached = solve_cached(graph, 100, SETTINGS, folder=tmp_path)
    assert not cached
    settings = {"time_limit": 5.0, "seed": 0, "threads": 1, "method": "auto"}
    assert solves == [{**settings, "lower_bound_ns": 0}]
    assert solve_cached(_graph(), 100, SETTINGS, folder=tmp_path) == (plan, True)
    assert len(solves) == 1
    assert read_plan(_file(tmp_path, graph)) == plan
    assert [file.name for file in tmp_path.iterdir()] == [_file(tmp_path, graph).name]


def test_the_folder_is_the_users(
    tmp_path: Path, solves: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`LOWTIDE_CACHE_DIR` says where plans are."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    solve_cached(_graph(), 100, SETTINGS)
    assert _file(tmp_path / "plans", _graph()).exists()


def test_the_key_has_all_that_a_plan_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs, budget, settings, versions and the source of times change the key, names do not."""
    graph = _graph()
    change = msgspec.structs.replace
    op, *rest = graph.ops
    graphs = [
        graph,
        _graph(11),
        _graph(count=5),
        _graph(time_ns=6),
        change(graph, ops=(change(op, workspace_bytes=1), *rest)),
        change(graph, ops=(change(op, rerun_workspace_bytes=1), *rest)),
        change(graph, ops=(change(op, recompute=False), *rest)),
        change(graph, tensors=tuple(change(t, size_bytes=12) for t in graph.tensors)),
        change(graph, extra_resident_bytes=1),
        change(graph, meta={"times": "measured"}),
    ]
    keys = [plan_key(g, 100, SETTINGS) for g in graphs]
    keys += [plan_key(graph, 101, SETTINGS)]
    for name in ("time_limit", "seed", "threads"):
        keys.append(plan_key(graph, 100, replace(SETTINGS, **{name: 7})))  # type: ignore[arg-type]
    keys.append(plan_key(graph, 100, replace(SETTINGS, method="greedy")))
    monkeypatch.setattr(plan_cache, "versions", lambda *names: versions() | {"numpy": "0"})
    keys.append(plan_key(graph, 100, SETTINGS))
    monkeypatch.undo()
    assert len(set(keys)) == len(keys)
    renamed = change(graph, name="other", ops=(change(op, source="train.py:3"), *rest))
    assert plan_key(renamed, 100, SETTINGS) == keys[0]


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def _text(path: Path) -> None:
    path.write_text("not a plan")


def _of_another_graph(path: Path) -> None:
    other = _graph(count=6)
    write_plan(plan_of(other, Schedule.keep_everything(other), budget_bytes=100), path)


def _of_another_budget(path: Path) -> None:
    write_plan(plan_of(_graph(), Schedule.keep_everything(_graph()), budget_bytes=90), path)


def _wrong(path: Path) -> None:
    write_plan(msgspec.structs.replace(read_plan(path), peak_bytes=1), path)


@pytest.mark.parametrize(
    "damage", [_truncated, _text, _of_another_graph, _of_another_budget, _wrong]
)
def test_damaged_and_foreign_files_are_replaced(
    damage: Any, tmp_path: Path, solves: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be trusted is ignored with one line, and written again."""
    plan, _ = solve_cached(_graph(), 100, SETTINGS, folder=tmp_path)
    damage(_file(tmp_path, _graph()))
    with caplog.at_level(logging.WARNING, plan_cache.__name__):
        assert solve_cached(_graph(), 100, SETTINGS, folder=tmp_path) == (plan, False)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "cannot be used" in lines[0]
    assert "\n" not in lines[0]
    assert solve_cached(_graph(), 100, SETTINGS, folder=tmp_path) == (plan, True)
    assert len(solves) == 2


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, solves: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The plan is used all the same, and one line says that it was not kept."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING, plan_cache.__name__):
        _, cached = solve_cached(_graph(), 100, SETTINGS, folder=blocked / "plans")
    assert not cached
    assert ["not written" in record.getMessage() for record in caplog.records] == [True]


def test_interrupted_solves_are_not_kept(
    tmp_path: Path, solves: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What Ctrl-C ended would be worse than what the settings promise; each is told of."""
    with caplog.at_level(logging.WARNING, plan_cache.__name__):
        for _ in range(2):
            assert not solve_cached(_graph(), 999, SETTINGS, folder=tmp_path)[1]
        solve_cached(_graph(), 100, SETTINGS, folder=tmp_path)
    assert len(solves) == 3
    assert ["interrupted" in text for text in caplog.messages] == [True, True]


def test_the_oldest_files_go(
    tmp_path: Path, solves: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is bounded; files that were read lately stay."""
    import os

    monkeypatch.setattr(plan_cache, "MAX_FILES", 2)
    for age, budget in enumerate((100, 101, 102)):
        solve_cached(_graph(), budget, SETTINGS, folder=tmp_path)
        os.utime(_file(tmp_path, _graph(), budget), (age, age))
        solve_cached(_graph(), 100, SETTINGS, folder=tmp_path)
    assert _file(tmp_path, _graph(), 100).exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_plan_for_another_size_is_a_start() -> None:
    """A plan is carried over to the same ops on other sizes, and to no others."""
    graph, other = _graph(), _graph(20)
    plan = plan_of(graph, Schedule.keep_everything(graph))
    found = adapted(plan, graph, other)
    assert found is not None
    assert found.graph_hash == other.structure_hash != plan.graph_hash
    assert adapted(plan, graph, _graph(count=5)) is None
