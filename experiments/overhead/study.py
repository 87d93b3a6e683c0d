"""One row: steps of a model replayed without recomputation and plain, in turns."""

from __future__ import annotations

import copy
import resource
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lowtide.frontends.torch.batches import split_batch
from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.solver.assemble import Origin, assemble
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from .models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 6.0


@dataclass(frozen=True)
class Row:
    """Processor time of a model's steps.

    Attributes
    ----------
    model, ops, steps
        Name, operators of the step, and how many steps of each were timed.
    plain_ms, replayed_ms
        Medians.
    overhead_percent, fastest_overhead_percent
        Extra time of the replay: of the medians, and of the fastest step of each.
    spread_percent
        Interquartile range of the ratio of neighbouring steps.
    plain_faults, replayed_faults
        Median page faults of a step: pages that the system handed out anew.
    """

    model: str
    ops: int
    steps: int
    plain_ms: float
    replayed_ms: float
    overhead_percent: float
    fastest_overhead_percent: float
    spread_percent: float
    plain_faults: float = 0.0
    replayed_faults: float = 0.0


def measure(name: str, steps: int) -> Row:
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
    faults: list[tuple[int, int]] = []
    for turn in range(count):
        took, counted = {}, {}
        for step in (replayed, eager) if turn % 2 else (eager, replayed):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            took[step] = _timed(step)
            counted[step] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        pairs.append((took[eager], took[replayed]))
        faults.append((counted[eager], counted[replayed]))
    ratios = sorted(b / a for a, b in pairs)
    plain_s = statistics.median(a for a, _ in pairs)
    replayed_s = statistics.median(b for _, b in pairs)
    return Row(
        model=name,
        ops=len(graph.ops),
        steps=count,
        plain_ms=plain_s * 1e3,
        replayed_ms=replayed_s * 1e3,
        overhead_percent=100 * (replayed_s / plain_s - 1),
        fastest_overhead_percent=100 * (min(b for _, b in pairs) / min(a for a, _ in pairs) - 1),
        spread_percent=100 * (ratios[3 * count // 4] - ratios[count // 4]),
        plain_faults=statistics.median(a for a, _ in faults),
        replayed_faults=statistics.median(b for _, b in faults),
    )


def _timed(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start
