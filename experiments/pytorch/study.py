"""One model, compiled by inductor under PyTorch's own budgets and under ours.

PyTorch's `activation_memory_budget` is a share of the bytes that it would save, not of a peak, so
the two meet at what is measured: ours is asked for each peak that theirs was measured to have, and
for one below all of them. All compiled steps of a model then run in turns; those for which inductor
wrote the same program are one.
"""

from __future__ import annotations

import copy
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import config as functorch_config

import lowtide
from lowtide.frontends.torch.costs.bench import cpu_clock
from lowtide.frontends.torch.costs.meter import measure_peak, measure_step_time
from lowtide.runtime.compile.observe import Watch
from lowtide.solver.errors import InfeasibleError, NoPlanError

from .rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from .models import Step

SETTINGS = (1.0, 0.85, 0.7, 0.5, 0.3, 0.15, 0.0)
ROOM = 1.001  # of a measured peak: a few small buffers more are no other peak
BELOW = 0.85  # of the smallest one


class Share:
    """Inductor with one setting of PyTorch's own budget."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.watch = Watch()

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile a graph."""
        from torch._inductor.compile_fx import compile_fx

        # A step from the cache of whole steps would come without its program.
        with functorch_config.patch(
            activation_memory_budget=self.share, enable_autograd_cache=False
        ):
            return compile_fx(gm, inputs, inner_compile=self.watch)


def study(
    name: str,
    make: Callable[[], Step],
    *,
    settings: Sequence[float] = SETTINGS,
    repeats: int = 15,
    time_limit: float = 60.0,
    told: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Measure one model; `told` hears of each row before its time is known."""
    torch.manual_seed(0)
    model, batch = make()
    model(*batch).backward()
    plain = gradients(model)
    runs: dict[str, Callable[[], None]] = {}
    rows: list[Row] = []
    default: list[torch.Tensor] = []

    def add(row: Row, backend: Any) -> None:
        torch._dynamo.config.recompile_limit = 1000
        twin = copy.deepcopy(model)
        twin.zero_grad()
        run = partial(step, torch.compile(twin, backend=backend), twin, batch)
        start = time.perf_counter()
        try:
            run()
        except (InfeasibleError, NoPlanError) as error:
            row.smallest_bytes = (error.smallest_bytes or 0) - base
            rows.append(row)
            told(row)
            return
        row.compile_s = time.perf_counter() - start
        found = gradients(twin)
        if not default:
            default.extend(found)
        scale = max(float(g.abs().max()) for g in plain)
        row.gradient_error = max(
            float((a - b).abs().max()) / scale for a, b in zip(found, plain, strict=True)
        )
        row.same_bits = all(torch.equal(a, b) for a, b in zip(found, default, strict=True))
        twin.zero_grad()
        row.peak_bytes = measure_peak(run).peak_bytes
        if isinstance(backend, Share):
            row.program = backend.watch.digest()
        elif backend.planned:
            planned = backend.planned[-1]
            row.program, row.share = planned.program, planned.share
            row.predicted_bytes = planned.plan.peak_bytes - base
            row.followed_bytes = (planned.peak_bytes or base) - base
            row.overhead = planned.plan.overhead
        runs.setdefault(row.program or f"row {len(rows)}", run)
        rows.append(row)
        told(row)

    base = resident(model, batch)
    for share in settings:
        add(Row(name, "torch", share), Share(share))
    peaks = sorted({row.peak_bytes for row in rows}, reverse=True)
    for peak in (*peaks, int(BELOW * peaks[-1])):
        budget = int(peak * ROOM) if peak in peaks else peak
        backend = lowtide.backend(base + budget, time_limit=time_limit)
        add(Row(name, "lowtide", peak, budget_bytes=budget), backend)
    times = measure_step_time(runs, repeats, clock=cpu_clock())
    for place, row in enumerate(rows):
        seconds = times.get(row.program or f"row {place}")
        if seconds is not None:
            row.milliseconds = statistics.median(seconds) * 1e3
            row.fastest_ms = min(seconds) * 1e3
    return rows


def step(call: Callable[..., torch.Tensor], model: nn.Module, batch: Sequence[Any]) -> None:
    """One training step without optimizer; old gradients are freed before it."""
    model.zero_grad()
    call(*batch).backward()  # type: ignore[no-untyped-call]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Copies of all gradients."""
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def resident(model: nn.Module, batch: Sequence[torch.Tensor]) -> int:
    """Bytes of what a compiled graph gets: parameters, buffers that training reads, the batch."""
    counters = {n for n, b in model.named_buffers() if b.dtype is torch.int64}
    tensors = [*model.parameters(), *(b for n, b in model.named_buffers() if n not in counters)]
    counted = sum(b.nbytes for n, b in model.named_buffers() if n in counters)
    return sum(t.nbytes for t in (*tensors, *batch)) + counted
