"""Caches on disk: reuse, damage, concurrent writers, bounded size."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from lowtide.solver.cache import Cache, cache_dir

if TYPE_CHECKING:
    from pathlib import Path


class Finding(msgspec.Struct, frozen=True):
    """What is kept."""

    time_ns: int
    sizes: tuple[int, ...] = (32, -1)


def opened(folder: Path, *, version: int = 3, most: int = 100) -> Cache[Finding]:
    """A cache on a folder, as another process would open it."""
    return Cache("findings", "a machine", Finding, version=version, most=most, folder=folder)


def test_written_entries_are_read_back(tmp_path: Path) -> None:
    """Another cache object on the same folder finds what was written."""
    opened(tmp_path).update({"a": Finding(5)})
    again = opened(tmp_path)
    assert again.get("a") == Finding(5)
    assert again.get("b") is None


def test_writes_merge(tmp_path: Path) -> None:
    """A writer that started earlier keeps what others wrote meanwhile."""
    first, second = opened(tmp_path), opened(tmp_path)
    assert first.get("a") is None
    second.update({"b": Finding(2)})
    first.update({"a": Finding(1)})
    found = opened(tmp_path)
    assert found.get("a") == Finding(1)
    assert found.get("b") == Finding(2)


def test_concurrent_writers_never_damage_the_file(tmp_path: Path) -> None:
    """Many writers and readers at once: the file can be read at every moment."""
    failures: list[str] = []

    def write(number: int) -> None:
        for turn in range(10):
            cache = opened(tmp_path)
            cache.update({f"{number}.{turn}": Finding(turn)})
            if cache.path.read_bytes()[-1:] != b"}":
                failures.append("half a file")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = opened(tmp_path)
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
    cache = opened(tmp_path)
    cache.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cache.get("a") is None
        cache.update({"a": Finding(5)})  # which reads the file again
    assert caplog.text.count("): ignored") == 1
    assert opened(tmp_path).get("a") == Finding(5)


def test_other_versions_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of another layout version counts as empty, which is said once."""
    opened(tmp_path).update({"a": Finding(5)})
    with caplog.at_level(logging.WARNING):
        cache = opened(tmp_path, version=4)
        assert cache.get("a") is None
        cache.update({"b": Finding(5)})
    assert caplog.text.count("of another version: ignored") == 1


def test_oldest_entries_go_first(tmp_path: Path) -> None:
    """Beyond the bound the entries that were written longest ago are dropped."""
    cache = opened(tmp_path, most=3)
    for name in "abcd":
        cache.update({name: Finding(5)})
    cache.update({"b": Finding(8)})
    cache.update({"e": Finding(5)})
    assert [name for name in "abcde" if cache.get(name)] == ["b", "d", "e"]


def test_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a place to write, the measurements are used all the same."""
    (tmp_path / "file").write_text("")
    cache = opened(tmp_path / "file" / "folder")
    with caplog.at_level(logging.WARNING):
        cache.update({"a": Finding(5)})
    assert "not written" in caplog.text
    assert cache.get("a") == Finding(5)


def test_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`LOWTIDE_CACHE_DIR` names the folder; without it, the user's cache folder is used."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("LOWTIDE_CACHE_DIR")
    assert cache_dir().name == "lowtide"
