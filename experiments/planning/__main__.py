"""Run it: `python -m experiments.planning [--time-limit S] [--json]`.

GPT-2 (12 layers, width 768, 4 x 1024 tokens) is captured on fake tensors with roofline times, so it
needs neither its memory nor a GPU. Public instances have a study of their own,
`experiments.published`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import lowtide
from lowtide.solver.baselines import BASELINES
from lowtide.solver.units import format_bytes


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


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table()
    for column in ("graph", "budget", "method", "overhead", "gap", "s", "status"):
        table.add_column(column, justify="left" if column in ("graph", "method") else "right")
    for row in rows:
        table.add_row(
            row["graph"],
            row["budget"],
            row["method"],
            "" if row["overhead"] is None else f"{row['overhead']:.3%}",
            "" if row["gap"] is None else f"{row['gap']:.3%}",
            f"{row['seconds']:.1f}",
            row["status"],
        )
    Console(width=120).print(table)


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.planning", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = plan_gpt2(options.time_limit)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode())
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
