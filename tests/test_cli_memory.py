"""`lowtide memory`: addresses of a plan, as a table, a document and a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lowtide.__main__ import main
from lowtide.frontends.chains import linear_chain
from lowtide.solver.files import write_graph, write_plan
from lowtide.solver.schedule import Schedule

from .plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_shows_and_writes_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The buffer is no shorter than what lives; the file says where everything is."""
    graph = linear_chain(6)
    plan = plan_of(graph, Schedule.keep_everything(graph))
    files = [str(tmp_path / name) for name in ("step.graph.json", "step.plan.json")]
    write_graph(graph, files[0])
    write_plan(plan, files[1])
    assert main(["memory", *files]) == 0
    out = capsys.readouterr().out
    assert "peak of live bytes" in out
    assert "proven to be shortest" in out
    target = tmp_path / "step.addresses.json"
    assert main(["memory", *files, "--exact", "--json", "-o", str(target)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["live_bytes"] == plan.peak_bytes - plan.resident_bytes
    assert document["arena_bytes"] >= document["lower_bound_bytes"] >= document["live_bytes"]
    assert document["caching_allocator_bytes"] >= document["live_bytes"]
    written = json.loads(target.read_text())
    assert len(written["blocks"]) == document["blocks"]
    ends = [block["offset_bytes"] + block["size_bytes"] for block in written["blocks"]]
    assert max(ends) <= document["arena_bytes"]


def test_refuses_a_plan_of_another_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input, in one line."""
    graph, other = linear_chain(6), linear_chain(5)
    files = [str(tmp_path / name) for name in ("step.graph.json", "step.plan.json")]
    write_graph(graph, files[0])
    write_plan(plan_of(other, Schedule.keep_everything(other)), files[1])
    assert main(["memory", *files]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "another graph" in line
