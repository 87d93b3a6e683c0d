"""Run it: `python -m experiments.planning [--only gpt2|instances] [--time-limit S] [--json]`.

GPT-2 (12 layers, width 768, 4 x 1024 tokens) is captured on fake tensors with roofline times, so it
needs neither its memory nor a GPU. The public instances are read from the folder that
LOWTIDE_INSTANCES names and skipped where it is missing; beside ours stand the results that their
authors published for Checkmate's integer program with Gurobi 9 on 12 to 48 threads within a day.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import lowtide
from lowtide.frontends.instances import read_instance
from lowtide.solver.baselines import BASELINES
from lowtide.solver.units import format_bytes

FOLDER = Path(
    os.environ.get("LOWTIDE_INSTANCES", Path(__file__).parents[2].parent / "shared" / "graphs")
)
# (instance, GiB, published overhead in %, seconds); 86400 is the limit: not proven there.
PUBLISHED: tuple[tuple[str, int, float | None, int], ...] = (
    ("monet_vgg16_176_ckm", 8, 4.16, 27),
    ("monet_vgg16_176_ckm", 9, 2.35, 10),
    ("monet_vgg16_176_ckm", 10, 2.03, 8),
    ("monet_un_11_ckm", 10, 2.42, 37),
    ("monet_un_11_ckm", 6, 6.03, 777),
    ("monet_resnet50_184_ckm", 10, 6.04, 45133),
    ("monet_resnet50_184_ckm", 8, 8.30, 86400),
    ("monet_resnet50_184_ckm", 7, 10.06, 86400),
    ("monet_mobilenet_v2_272_ckm", 8, 7.15, 19847),
    ("monet_mobilenet_v2_272_ckm", 6, 11.37, 86400),
)


def gpt2_graph() -> lowtide.Graph:
    """The training step of GPT-2 with 12 layers, captured without allocating it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config()).train()
        ids = torch.zeros(4, 1024, dtype=torch.int64)
    batch = {"input_ids": ids, "labels": ids}
    return lowtide.capture(model, batch, device="cpu", times="roofline").graph


def plan_gpt2(time_limit: float) -> list[dict[str, Any]]:
    """Every method at 60% and 40%, and lowtide at what checkpointing per block needs."""
    begun = time.monotonic()
    graph = gpt2_graph()
    seconds = time.monotonic() - begun
    print(f"captured {len(graph.ops)} ops in {seconds:.1f} s", file=sys.stderr, flush=True)
    blocks = BASELINES["per_block"](graph, None)
    assert blocks is not None
    least = lowtide.simulate(graph, blocks).peak_bytes
    rows: list[dict[str, Any]] = []
    methods = [name for name in BASELINES if name != "keep_everything"]
    for budget, names in (("60%", methods), ("40%", methods), (least, ["per_block"])):
        found = lowtide.compare(graph, [budget], [*names, "auto"], time_limit=time_limit)
        for row in found.rows:
            rows.append(
                {
                    "graph": "gpt2-12",
                    "budget": f"{budget}" if isinstance(budget, str) else format_bytes(budget),
                    "method": row.method,
                    "overhead": row.overhead,
                    "gap": row.gap,
                    "seconds": row.seconds,
                    "status": row.status,
                }
            )
    return rows


def plan_instances(time_limit: float) -> list[dict[str, Any]]:
    """`auto` at the published budgets."""
    rows: list[dict[str, Any]] = []
    for name, gib, published, published_seconds in PUBLISHED:
        path = FOLDER / f"{name}.json.gz"
        if not path.exists():
            print(f"{path} is missing: skipped", file=sys.stderr)
            continue
        print(f"solving {name} at {gib} GiB", file=sys.stderr, flush=True)
        plan = lowtide.solve(read_instance(path), f"{gib}GiB", time_limit=time_limit)
        rows.append(
            {
                "graph": name,
                "budget": f"{gib} GiB",
                "method": "auto",
                "overhead": plan.overhead,
                "gap": plan.gap,
                "seconds": plan.solve_seconds,
                "status": plan.status.value,
                "published": None if published is None else published / 100,
                "published_seconds": published_seconds,
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table()
    for column in ("graph", "budget", "method", "overhead", "gap", "s", "status", "published"):
        table.add_column(column, justify="left" if column in ("graph", "method") else "right")
    for row in rows:
        known = row.get("published")
        table.add_row(
            row["graph"],
            row["budget"],
            row["method"],
            "" if row["overhead"] is None else f"{row['overhead']:.3%}",
            "" if row["gap"] is None else f"{row['gap']:.3%}",
            f"{row['seconds']:.1f}",
            row["status"],
            "" if known is None else f"{known:.2%} in {row['published_seconds']} s",
        )
    Console(width=120).print(table)


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.planning", description=__doc__)
    parser.add_argument("--only", choices=("gpt2", "instances"))
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.only != "instances":
        rows += plan_gpt2(options.time_limit)
    if options.only != "gpt2":
        rows += plan_instances(options.time_limit)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode())
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
