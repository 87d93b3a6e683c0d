"""Freed memory stays in the process, and a profile knows about it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from lowtide.frontends.torch.costs import heap
from lowtide.frontends.torch.costs.hardware import machine_text

_COUNT = """
import ctypes, resource, sys
from lowtide.frontends.torch.costs.heap import keep_freed_memory, keeps_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory() and keep_freed_memory()
assert keeps_freed_memory() == (sys.argv[1] == "keep")
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
for turn in range(6):
    if turn == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(library.malloc(48 << 20))
    ctypes.memset(block, 1, 48 << 20)
    library.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="concerns glibc")
def test_large_blocks_are_used_again() -> None:
    """Three blocks of 48 MiB cost their page faults once, or every time."""

    def faults(word: str) -> int:
        command = [sys.executable, "-c", _COUNT, word]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    # Three blocks: at least a fault for every 2 MiB (a huge page) without, next to none with it.
    assert faults("leave") >= 3 * 24
    assert faults("keep") < 24


def test_profiles_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times measured with and without it do not mix in the cache."""
    texts = []
    for keeps in (False, True):
        monkeypatch.setattr(heap._State, "keeps", keeps)
        texts.append(machine_text(torch.device("cpu")))
    assert texts[0] != texts[1]


def test_elsewhere_it_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system's C library is left alone."""
    monkeypatch.setattr(heap._State, "keeps", False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not heap.keep_freed_memory()
    assert not heap.keeps_freed_memory()
