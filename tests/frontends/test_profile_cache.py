"""The profile cache on disk: reuse, damage, concurrent writers, bounded size."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from lowtide.frontends.torch.costs import profile_cache
from lowtide.frontends.torch.costs.profile_cache import Measurement, ProfileCache, cache_dir

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


def _measurement(time_ns: int = 5) -> Measurement:
    return Measurement("aten.mm.default", time_ns, 64, (32, -1), (-1, -1), 9)


def test_written_entries_are_read_back(tmp_path: Path) -> None:
    """Another cache object on the same folder finds what was written."""
    ProfileCache(CPU, tmp_path).update({"a": _measurement()})
    again = ProfileCache(CPU, tmp_path)
    assert again.get("a") == _measurement()
    assert again.get("b") is None


def test_writes_merge(tmp_path: Path) -> None:
    """A writer that started earlier keeps what others wrote meanwhile."""
    first, second = ProfileCache(CPU, tmp_path), ProfileCache(CPU, tmp_path)
    assert first.get("a") is None
    second.update({"b": _measurement(2)})
    first.update({"a": _measurement(1)})
    found = ProfileCache(CPU, tmp_path)
    assert found.get("a") == _measurement(1)
    assert found.get("b") == _measurement(2)


def test_concurrent_writers_never_damage_the_file(tmp_path: Path) -> None:
    """Many writers and readers at once: the file can be read at every moment."""
    failures: list[str] = []

    def write(number: int) -> None:
        for turn in range(10):
            cache = ProfileCache(CPU, tmp_path)
            cache.update({f"{number}.{turn}": _measurement(turn)})
            if cache.path.read_bytes()[-1:] != b"}":
                failures.append("half a file")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = ProfileCache(CPU, tmp_path)
    assert all(found.get(f"{n}.{turn}") for n in range(4) for turn in range(10))
    names = [found.path.name, found.path.with_suffix(".lock").name]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"version": 1, "machine": 3}']
)
def test_damaged_file_is_ignored(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be read costs a log line, and the next write replaces it."""
    cache = ProfileCache(CPU, tmp_path)
    cache.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cache.get("a") is None
        cache.update({"a": _measurement()})  # which reads the file again
    assert caplog.text.count("): ignored") == 1
    assert ProfileCache(CPU, tmp_path).get("a") == _measurement()


def test_other_versions_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of another layout version counts as empty, which is said once."""
    ProfileCache(CPU, tmp_path).update({"a": _measurement()})
    monkeypatch.setattr(profile_cache, "VERSION", profile_cache.VERSION + 1)
    with caplog.at_level(logging.WARNING):
        cache = ProfileCache(CPU, tmp_path)
        assert cache.get("a") is None
        cache.update({"b": _measurement()})
    assert caplog.text.count("of another version: ignored") == 1


def test_oldest_entries_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the entries that were written longest ago are dropped."""
    monkeypatch.setattr(profile_cache, "MAX_ENTRIES", 3)
    cache = ProfileCache(CPU, tmp_path)
    for name in "abcd":
        cache.update({name: _measurement()})
    cache.update({"b": _measurement(8)})
    cache.update({"e": _measurement()})
    assert [name for name in "abcde" if cache.get(name)] == ["b", "d", "e"]


def test_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a place to write, the measurements are used all the same."""
    (tmp_path / "file").write_text("")
    cache = ProfileCache(CPU, tmp_path / "file" / "folder")
    with caplog.at_level(logging.WARNING):
        cache.update({"a": _measurement()})
    assert "not written" in caplog.text
    assert cache.get("a") == _measurement()


def test_threads_are_part_of_the_machine(tmp_path: Path) -> None:
    """Times of one thread are not those of two."""
    before = torch.get_num_threads()
    paths = set()
    for count in (1, 2):
        torch.set_num_threads(count)
        paths.add(ProfileCache(CPU, tmp_path).path)
    torch.set_num_threads(before)
    assert len(paths) == 2


def test_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`LOWTIDE_CACHE_DIR` names the folder; without it, the user's cache folder is used."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("LOWTIDE_CACHE_DIR")
    assert cache_dir().name == "lowtide"
