"""Replayed modules under DDP and FSDP: two processes, bit-equal to the same without lowtide."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from torch import distributed

from ...conftest import ROOT

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()),
    reason="PyTorch without gloo",
)

FAST = (
    "ddp",
    "ddp_overlaps",
    "ddp_accumulates",
    "losses_outside",
    "fsdp_root",
    "fsdp_blocks",
    "fsdp_accumulates",
    "accumulating_plans",
    "fsdp_new_calls",
    "refusals",
    "other_plan",
    "one_plan",
)
SLOW = (
    "ddp_options",
    "fsdp_shapes_of_units",
    "fsdp_on_the_original",
    "fsdp_frees",
    "fsdp_warns",
    "fsdp_evaluates",
    "fsdp1_one_unit",
)
SECONDS = 300


@functools.cache
def _results(names: tuple[str, ...]) -> list[dict[str, str]]:
    """What each of two processes says of each check; a hanging launch is killed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "tests.runtime.distributed.worker", folder, *names),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOWTIDE_CACHE_DIR": folder}
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as launch:
            try:
                output, _ = launch.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(launch.pid, signal.SIGKILL)
                output, _ = launch.communicate()
                output = f"not done within {SECONDS} s\n{output}"
        files = [Path(folder) / f"rank{rank}.json" for rank in range(2)]
        found = [json.loads(f.read_text(encoding="utf-8")) if f.exists() else {} for f in files]
        return [
            {n: results.get(n, f"no result\n{output[-4000:]}") for n in names} for results in found
        ]


def _check(name: str, names: tuple[str, ...]) -> None:
    for rank, results in enumerate(_results(names)):
        assert not results[name], f"rank {rank}: {results[name]}"


@pytest.mark.parametrize("name", FAST)
def test_two_processes(name: str) -> None:
    """See the function of that name in `worker`."""
    _check(name, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_two_processes_more(name: str) -> None:
    """See the function of that name in `worker`."""
    _check(name, SLOW)
