"""The measurements of a machine are kept apart from those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lowtide.frontends.torch.costs.profile_cache import Measurement, ProfileCache

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


def test_written_measurements_are_read_back(tmp_path: Path) -> None:
    """All that was measured of a call is there again."""
    found = Measurement("aten.mm.default", 5, 64, (32, -1), (-1, -1), 9, ((4, 1), ()))
    ProfileCache(CPU, tmp_path).update({"a": found})
    assert ProfileCache(CPU, tmp_path).get("a") == found


def test_threads_are_part_of_the_machine(tmp_path: Path) -> None:
    """Times of one thread are not those of two."""
    before = torch.get_num_threads()
    paths = set()
    for count in (1, 2):
        torch.set_num_threads(count)
        paths.add(ProfileCache(CPU, tmp_path).path)
    torch.set_num_threads(before)
    assert len(paths) == 2
