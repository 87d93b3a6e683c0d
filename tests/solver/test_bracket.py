"""The smallest budget: reached from above, proven from below."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from lowtide.__main__ import main
from lowtide.frontends.chains import residual_chain
from lowtide.solver.bracket import bracket
from lowtide.solver.control import Control
from lowtide.solver.errors import InfeasibleError
from lowtide.solver.files import read_plan, write_graph
from lowtide.solver.plan import Stop
from lowtide.solver.schedule import Schedule
from lowtide.solver.search.anneal import Search
from lowtide.solver.simulate import simulate
from lowtide.solver.smallest import baseline_starts, single_op_bound, smallest_found
from lowtide.solver.solve import solve

from .chains import mirrored_chain, recompute_all
from .strategies import graphs

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.solver.graph import Graph


@given(graph=graphs(max_ops=4))
@settings(max_examples=10, deadline=None)
def test_found_and_bound_meet_on_small_graphs(graph: Graph) -> None:
    """The reached budget has its plan; a byte less than the bound is refused in base order."""
    found = bracket(graph, time_limit=20.0, gap=0.0, order="base")
    exact = simulate(graph, Schedule.from_computes(graph, found.computes))
    assert exact.peak_bytes == found.found_bytes
    assert found.bound_bytes == found.found_bytes
    assert single_op_bound(graph, any_order=True)[0] <= found.any_order_bound_bytes
    assert found.any_order_bound_bytes <= found.found_bytes
    everything = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    if found.bound_bytes <= everything and found.bound_bytes > 1:
        with pytest.raises(InfeasibleError):
            solve(graph, found.bound_bytes - 1, order="base")


def test_any_order_is_bounded_by_what_ops_depend_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says both bounds and writes a plan with that peak."""
    graph = residual_chain(4)
    write_graph(graph, tmp_path / "g.graph.json")
    target = tmp_path / "p.plan.json"
    arguments = ["smallest", str(tmp_path / "g.graph.json"), "-o", str(target), "--json"]
    assert main([*arguments, "--time-limit", "20"]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = read_plan(target)
    assert plan.peak_bytes == document["smallest_bytes"]
    assert document["any_order_bound_bytes"] <= document["smallest_bytes"]
    assert document["gap"] <= 0.05


def test_exit_codes_say_why_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two bounds are an answer: 0 with the gap that is left in words, and 130 after Ctrl-C."""
    graph = residual_chain(30)
    write_graph(graph, tmp_path / "g.graph.json")
    arguments = ["smallest", str(tmp_path / "g.graph.json"), "-o"]
    assert main([*arguments, str(tmp_path / "a.plan.json"), "--time-limit", "0.001"]) == 0
    known = bracket(graph, time_limit=0.001)
    assert known.stopped_by is Stop.TIME_LIMIT
    assert f"a gap of {known.gap:.3%} remains" in capsys.readouterr().err
    stopped = dataclasses.replace(known, stopped_by=Stop.INTERRUPTED)
    monkeypatch.setattr("lowtide.solver.bracket.bracket", lambda *_, **__: stopped)
    assert main([*arguments, str(tmp_path / "b.plan.json"), "-q"]) == 130
    for name in ("a", "b"):
        assert read_plan(tmp_path / f"{name}.plan.json").peak_bytes == known.found_bytes


def test_of_schedules_with_the_smallest_peak_a_fast_one_is_taken() -> None:
    """The search for the peak alone looks at no time: a second one does, and so do heuristics."""
    graph = residual_chain(6)
    alone = smallest_found(graph, 0, Control())
    found = bracket(graph, time_limit=20.0)
    peak = found.found_bytes - graph.resident_bytes
    time = graph.arrays.time[list(found.computes)].sum()
    assert peak < alone.peak or (peak == alone.peak and time < alone.time)
    for name, other in baseline_starts(graph, Search(graph, 0), found.found_bytes, Control()):
        assert other.peak > peak or other.time >= time, name


def test_recomputing_everything_is_tried() -> None:
    """A chain whose smallest peak takes dozens of runs of every op is brought down to it."""
    graph = mirrored_chain(48)
    nested = simulate(graph, Schedule.from_computes(graph, recompute_all(graph))).peak_bytes
    found = bracket(graph, time_limit=20.0)
    assert found.found_bytes == nested == found.bound_bytes
