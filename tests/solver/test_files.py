"""Graph and plan files: round trips, damage, versions, and never half a file."""

from __future__ import annotations

import gzip
import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from lowtide.frontends.generated import random_graph
from lowtide.solver import files
from lowtide.solver.errors import InputError
from lowtide.solver.files import read_graph, read_plan, write_atomic, write_graph, write_plan

from .strategies import graphs, plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.solver.graph import Graph

GRAPH = random_graph(1, 6)
PLAN = plan_of(GRAPH, range(len(GRAPH.ops)))


def refused(path: Path, read: Any = read_graph) -> str:
    """Message of the refusal: one line that names the file."""
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def edited(tmp_path: Path, **change: object) -> Path:
    """A graph file with some top-level fields changed."""
    path = tmp_path / "edited.graph.json"
    write_graph(GRAPH, path)
    document = json.loads(path.read_text()) | change
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", ["x.graph.json", "x.graph.json.gz"])
def test_graph_round_trip(tmp_path: Path, name: str) -> None:
    """A graph is the same after writing and reading, plain or packed."""
    write_graph(GRAPH, tmp_path / name)
    again = read_graph(tmp_path / name)
    assert again == GRAPH
    assert again.structure_hash == GRAPH.structure_hash


@pytest.mark.parametrize("name", ["x.plan.json", "x.plan.json.gz"])
def test_plan_round_trip(tmp_path: Path, name: str) -> None:
    """A plan is the same after writing and reading, plain or packed."""
    write_plan(PLAN, tmp_path / name)
    again = read_plan(tmp_path / name)
    assert again == PLAN
    assert again.schedule == PLAN.schedule


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs())
def test_random_graphs_round_trip(tmp_path: Path, graph: Graph) -> None:
    """Whatever a graph holds comes back."""
    write_graph(graph, tmp_path / "g.json.gz")
    assert read_graph(tmp_path / "g.json.gz") == graph


def test_files_are_reproducible(tmp_path: Path) -> None:
    """The same graph gives the same bytes, also when packed."""
    for name in ("a.json.gz", "b.json.gz"):
        write_graph(GRAPH, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    """A packed file that lost its ending is read all the same."""
    write_graph(GRAPH, tmp_path / "x.gz")
    (tmp_path / "x.gz").rename(tmp_path / "x.json")
    assert read_graph(tmp_path / "x.json") == GRAPH


def test_document_names_schema_and_versions(tmp_path: Path) -> None:
    """The first keys of a file say what it is and who wrote it."""
    write_plan(PLAN, tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    assert list(document) == ["schema", "schema_version", "lowtide_version", "body"]
    assert document["schema"] == "lowtide.plan"
    assert document["body"]["steps"][0] == "compute 0"


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is the user's error, with the system's reason."""
    assert "No such file" in refused(tmp_path / "none.json")


def test_directory_instead_of_file(tmp_path: Path) -> None:
    """A folder cannot be read as a file."""
    assert "cannot read" in refused(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"schema": 3}', b"PK\x03\x04 a zip file"],
)
def test_not_a_document(tmp_path: Path, content: bytes) -> None:
    """Anything that is not a document of ours is refused as such."""
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert "is not a lowtide.graph file" in refused(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files(tmp_path: Path, share: float) -> None:
    """A file that lost its end is refused, plain or packed."""
    for name in ("x.json", "x.json.gz"):
        path = tmp_path / name
        write_graph(GRAPH, path)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        refused(path)


def test_flipped_bits_in_gzip(tmp_path: Path) -> None:
    """A packed file with a damaged middle is refused."""
    path = tmp_path / "x.json.gz"
    write_graph(GRAPH, path)
    data = bytearray(path.read_bytes())
    for i in range(len(data) // 2, len(data) // 2 + 8):
        data[i] ^= 0xFF
    path.write_bytes(bytes(data))
    refused(path)


def test_other_kind_of_file(tmp_path: Path) -> None:
    """A plan is not a graph, and the message says what it is."""
    path = tmp_path / "x.json"
    write_plan(PLAN, path)
    assert "is a lowtide.plan file, expected lowtide.graph" in refused(path)


def test_newer_version(tmp_path: Path) -> None:
    """A file from a newer lowtide is refused by name, with what to do."""
    message = refused(edited(tmp_path, schema_version=99, lowtide_version="9.9.9"))
    assert "lowtide 9.9.9" in message
    assert "upgrade lowtide" in message


def test_unknown_older_version(tmp_path: Path) -> None:
    """A version that never existed is not guessed at."""
    assert "version 0 is not a known version" in refused(edited(tmp_path, schema_version=0))


def test_older_version_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies of an older version go through the registered upgrade."""
    path = edited(tmp_path, schema_version=1)

    def rename(body: dict[str, Any]) -> dict[str, Any]:
        return body | {"name": body["name"] + " upgraded"}

    monkeypatch.setitem(files.CURRENT_VERSION, files.GRAPH_SCHEMA, 2)
    monkeypatch.setitem(files.UPGRADES, (files.GRAPH_SCHEMA, 1), rename)
    assert read_graph(path).name == f"{GRAPH.name} upgraded"


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"name": "g"},
        {"name": "g", "ops": [], "tensors": [], "more": 1},
        {"name": "g", "ops": [], "tensors": [{"name": "a", "size_bytes": "many"}]},
        {"name": "g", "ops": [], "tensors": [{"name": "a", "size_bytes": 1.5}]},
        {"name": "g", "ops": [], "tensors": [{"name": "a", "size_bytes": -1}]},
        {
            "name": "g",
            "tensors": [],
            "ops": [{"name": "a", "kind": "k", "time_ns": 1, "inputs": [], "outputs": [4]}],
        },
    ],
)
def test_damaged_bodies(tmp_path: Path, body: object) -> None:
    """Missing, unknown or impossible fields are refused with the file's name."""
    refused(edited(tmp_path, body=body))


def test_damaged_steps_are_refused_on_reading(tmp_path: Path) -> None:
    """A plan with an unreadable step does not get past the reader."""
    path = tmp_path / "p.json"
    write_plan(PLAN, path)
    path.write_text(path.read_text().replace('"compute 0"', '"compote 0"'))
    with pytest.raises(InputError, match=r"p\.json: .*compote 0"):
        read_plan(path)


def test_writing_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Writing replaces a file whole, with the usual mode, and no temporary file remains."""
    path = tmp_path / "x.bin"
    write_atomic(path, b"one" * 1000)
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["x.bin"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last step fails the old content is still there, and the temporary file is not."""
    path = tmp_path / "x.bin"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left on device") as caught:
        write_atomic(path, b"new")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.bin"]


def test_interrupted_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during writing passes through and leaves no trace."""
    path = tmp_path / "x.bin"
    write_atomic(path, b"old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.bin"]


def test_missing_folder(tmp_path: Path) -> None:
    """A target in a folder that does not exist is the user's error."""
    with pytest.raises(InputError, match="cannot write") as caught:
        write_graph(GRAPH, tmp_path / "none" / "x.json")
    assert "\n" not in str(caught.value)


def test_packed_files_are_gzip(tmp_path: Path) -> None:
    """What ends in .gz can be unpacked by anybody."""
    write_graph(GRAPH, tmp_path / "x.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "x.json.gz").read_bytes()))
    assert document["schema"] == "lowtide.graph"
