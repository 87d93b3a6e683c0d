"""Everything about CUDA that a machine without a GPU cannot show.

    python -m experiments.gpu --out DIR [--seconds 480] [--parts tests,parity,...]
    python -m experiments.gpu --out DIR --device cpu --small     # tries the script itself

Parts: the tests marked gpu; parity of six models with plain PyTorch, and predicted against measured
peaks; overheads of GPT-2 small and ResNet-50 at several budgets. Each part, and each row of a part,
stands alone: what fails is written down as an error and the rest goes on. `results.json` is written
anew after every row.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

# Read when the first cuBLAS handle is made: without it two equal products may differ.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from lowtide.solver.files import write_atomic

from . import parts
from .setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Part = Callable[[Setting], Iterator[dict[str, Any]]]

PARTS: dict[str, Part] = {
    "environment": parts.environment,
    "parity": parts.parity,
    "overhead": parts.overhead,
    "tests": parts.tests,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts; 1 if one of them failed or bits differ."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models, for a quick try")
    parser.add_argument("--seconds", type=float, default=480.0, help="nothing starts after these")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("LOWTIDE_CACHE_DIR", str(options.out / "cache"))
    device = torch.device(options.device)
    setting = Setting(device, options.small, time.monotonic() + options.seconds)
    results: dict[str, Any] = {}
    for name in options.parts.split(","):
        rows = results[name] = []
        for row in _safely(PARTS[name], setting):
            rows.append(row)
            print(f"{name}: {row}", file=sys.stderr, flush=True)
            text = msgspec.json.format(msgspec.json.encode(results), indent=1)
            write_atomic(options.out / "results.json", text)
    rows = [row for found in results.values() for row in found]
    return int(any("error" in row or row.get("equal") is False for row in rows))


def _safely(part: Part, setting: Setting) -> Iterator[dict[str, Any]]:
    """Rows of a part; the last one tells of what ended it early."""
    try:
        yield from part(setting)
    except Exception as error:
        yield {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


if __name__ == "__main__":
    sys.exit(main())
