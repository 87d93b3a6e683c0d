"""Public instances: the neutral format, and the published facts of the files where present."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from experiments.published.folder import instances_folder
from lowtide.frontends.instances import read_instance
from lowtide.solver.errors import InputError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.solver.graph import Graph

FOLDER = instances_folder()
FILES = sorted(path for path in FOLDER.glob("*.json.gz") if path.name != "published.json.gz")


def document() -> dict[str, Any]:
    """A small instance: a parameter, an activation, views of both, a workspace, a token."""
    return {
        "name": "small",
        "source": "by hand",
        "units": {"time": "us", "size": "bytes"},
        "nodes": [
            {"id": 0, "name": "f", "op": "mm", "time": 1.5, "inputs": [10], "outputs": [11],
             "is_backward": False, "workspace": 64},
            {"id": 1, "name": "view", "op": "view", "time": 0.25, "inputs": [11, 10],
             "outputs": [12, 15], "is_backward": False},
            {"id": 2, "name": "f", "op": "mm_b", "time": 2, "inputs": [12, 11],
             "outputs": [13, 14], "is_backward": True},
        ],
        "data": [
            {"id": 10, "size": 1000, "alias_of": None, "kind": "param", "name": "w"},
            {"id": 11, "size": 200, "alias_of": None, "kind": "activation"},
            {"id": 12, "size": 0, "alias_of": 11, "kind": "activation"},
            {"id": 15, "size": 0, "alias_of": 10, "kind": "param"},
            {"id": 13, "size": 30, "alias_of": None, "kind": "grad", "name": "g"},
            {"id": 14, "size": 0, "alias_of": None, "kind": "grad", "name": "token"},
        ],
        "targets": [14],
    }  # fmt: skip


def write(tmp_path: Path, value: object) -> Path:
    """Write an instance file."""
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(json.dumps(value).encode()))
    return path


def test_small_instance(tmp_path: Path) -> None:
    """Microseconds become nanoseconds, aliases their root, producerless data residents."""
    graph = read_instance(write(tmp_path, document()))
    assert [op.time_ns for op in graph.ops] == [1500, 250, 2000]
    assert [op.inputs for op in graph.ops] == [(0,), (1, 0), (1,)]
    assert [op.outputs for op in graph.ops] == [(1,), (), (2, 3)]
    assert [op.name for op in graph.ops] == ["f", "view", "f#2"]
    assert [op.phase for op in graph.ops] == ["forward", "forward", "backward"]
    assert graph.ops[0].workspace_bytes == 64
    assert graph.resident_bytes == 1000
    assert [tensor.output for tensor in graph.tensors] == [False, False, False, True]
    assert graph.tensors[1].name == "d11"
    assert (graph.time_unit, graph.size_unit, graph.boundary) == ("ns", "bytes", 2)
    assert simulate(graph, Schedule.keep_everything(graph)).peak_bytes == 1264


@pytest.mark.parametrize(
    ("times", "expected"), [([1, 2, 3], [1, 2, 3]), ([1, 2.5, 3], [1000, 2500, 3000])]
)
def test_costs_stay_integers(tmp_path: Path, times: list[float], expected: list[int]) -> None:
    """Cost units are kept if they are whole numbers and scaled by 1000 otherwise."""
    value = document()
    value["units"] = {"time": "cost", "size": "elements"}
    for node, time in zip(value["nodes"], times, strict=True):
        node["time"] = time
    graph = read_instance(write(tmp_path, value))
    assert [op.time_ns for op in graph.ops] == expected
    assert (graph.time_unit, graph.size_unit) == ("cost", "elements")


def test_broken_instances_are_refused(tmp_path: Path) -> None:
    """Missing fields, unknown data and a wrong order each give one line with the file's name."""
    missing, unknown, order = document(), document(), document()
    del missing["targets"]
    unknown["nodes"][0]["inputs"] = [99]
    order["nodes"].reverse()
    for value in ({}, missing, unknown, order):
        path = write(tmp_path, value)
        with pytest.raises(InputError) as caught:
            read_instance(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_missing_instance(tmp_path: Path) -> None:
    """A missing file is the user's error."""
    with pytest.raises(InputError, match="cannot read"):
        read_instance(tmp_path / "none.json.gz")


def published() -> dict[str, list[str]]:
    """Rows of the table of instances in the folder's notes: name -> cells."""
    notes = FOLDER / "README.md"
    if not notes.exists():
        return {}
    rows = [line.strip("| \n").split(" | ") for line in notes.read_text().splitlines()]
    return {row[0]: row for row in rows if len(row) == 12 and row[1].isdecimal()}


def amount(graph: Graph, size: int) -> str:
    """A size as the table prints it."""
    return format_bytes(size) if graph.size_unit == "bytes" else str(size)


@pytest.mark.skipif(not published(), reason="the folder of public instances is not there")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_published_facts(path: Path) -> None:
    """Nodes, storages, resident bytes, peak, bound and targets are those of the table."""
    graph = read_instance(path)
    cells = published()[path.name.removesuffix(".json.gz")]
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    made = {t for op in graph.ops for t in op.outputs}

    def live(tensors: tuple[int, ...]) -> int:
        return sum(graph.tensors[t].size_bytes for t in tensors if t in made)

    largest = max(live(op.inputs) + live(op.outputs) + op.workspace_bytes for op in graph.ops)
    kept = live(tuple(t for t, tensor in enumerate(graph.tensors) if tensor.output))
    assert str(len(graph.ops)) == cells[1]
    assert str(len(made)) == cells[3]
    assert amount(graph, graph.resident_bytes).split()[0] == cells[7].split()[0]
    assert amount(graph, peak) == re.sub(r" \(.*", "", cells[8])
    assert amount(graph, graph.resident_bytes + max(largest, kept)) == cells[9]
    assert str(sum(tensor.output for tensor in graph.tensors)) == cells[-1]
