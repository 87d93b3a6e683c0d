"""Time of a training step, replayed without recomputation against plain PyTorch.

    python -m experiments.overhead [--steps N] [--models NAME,...] [--json]

Every row is one model: medians over steps that alternate between both, forward and backward, no
optimizer, one thread, in processor time (a machine that is shared disturbs it less than wall time).
`fastest` compares the fastest step of each, `spread` is the interquartile range of the ratio of
neighbouring steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lowtide.frontends.torch.capture import capture, split_batch
from lowtide.runtime.heap import keep_freed_memory
from lowtide.runtime.replay import replay
from lowtide.solver.assemble import Origin, assemble
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from .models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 6.0


def main(arguments: list[str] | None = None) -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m experiments.overhead")
    parser.add_argument(
        "--steps", type=int, default=0, help="steps of each; 0: some seconds' worth"
    )
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    for name in options.models.split(","):
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure(name, options.steps))
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(
        f"{'model':<12}{'ops':>6}{'plain':>13}{'replayed':>13}{'overhead':>10}{'fastest':>10}{'spread':>8}"
    )
    for row in rows:
        print(
            f"{row['model']:<12}{row['ops']:>6}{row['plain_ms']:>10.3f} ms"
            f"{row['replayed_ms']:>10.3f} ms{row['overhead_percent']:>+9.2f}%"
            f"{row['fastest_overhead_percent']:>+9.2f}%{row['spread_percent']:>7.1f}%"
        )
    return 0


def measure(name: str, steps: int) -> dict[str, Any]:
    """One row: `steps` steps of each, or what fits into some seconds if 0."""
    torch.manual_seed(0)
    model, batch, loss_fn = MODELS[name]()
    plain = copy.deepcopy(model)
    captured = capture(model, batch, loss_fn)
    graph = captured.graph
    peak = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    module = replay(captured, assemble(graph, peak, range(len(graph.ops)), Origin("keep", 0, 1, 0)))
    _, args, kwargs = split_batch(batch)

    def step_of(net: nn.Module, loss: Any) -> Callable[[], None]:
        def step() -> None:
            out = net(*args, **kwargs)
            out = out if loss is None else loss(out)
            found = out if isinstance(out, torch.Tensor) else out.loss
            found.backward()
            for parameter in net.parameters():
                parameter.grad = None

        return step

    eager, replayed = step_of(plain, loss_fn), step_of(module, None)
    for _ in range(10):
        once = _timed(eager) + _timed(replayed)
    count = steps or max(10, min(2000, int(SECONDS / once)))
    pairs = []
    for turn in range(count):
        if turn % 2:
            b, a = _timed(replayed), _timed(eager)
        else:
            a, b = _timed(eager), _timed(replayed)
        pairs.append((a, b))
    ratios = sorted(b / a for a, b in pairs)
    plain_s = statistics.median(a for a, _ in pairs)
    replayed_s = statistics.median(b for _, b in pairs)
    return {
        "model": name,
        "ops": len(graph.ops),
        "steps": count,
        "plain_ms": plain_s * 1e3,
        "replayed_ms": replayed_s * 1e3,
        "overhead_percent": 100 * (replayed_s / plain_s - 1),
        "fastest_overhead_percent": 100 * (min(b for _, b in pairs) / min(a for a, _ in pairs) - 1),
        "spread_percent": 100 * (ratios[3 * count // 4] - ratios[count // 4]),
    }


def _timed(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
