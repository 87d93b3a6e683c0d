"""Peak, bits and time of contenders for one model."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowtide.frontends.torch.costs.meter import measure_peak, measure_step_time, medians

from .rows import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from .rivals import Contender

SEED = 1
BESIDE = 4  # contenders between two plain steps of a round
PLAIN = "plain"


class Result(NamedTuple):
    """What a step leaves behind."""

    loss: torch.Tensor
    gradients: list[torch.Tensor | None]
    buffers: list[torch.Tensor]


class Bench:
    """Compares contenders with the plain step of a model.

    Parameters
    ----------
    plain
        The plain step.
    batch
        What every step is called with.
    """

    def __init__(self, plain: Contender, batch: Sequence[Any]) -> None:
        self.plain, self.batch = plain, batch
        self._buffers = [buffer.clone() for buffer in plain.model.buffers()]
        self._expected = self.result(plain)
        self.plain_bytes = self.peak(plain)

    def result(self, contender: Contender) -> Result:
        """One step from the buffers and the seed that every contender begins with."""
        model = contender.model
        self._restore(model)
        torch.manual_seed(SEED)
        loss = contender.run(self.batch).clone()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        buffers = [buffer.clone() for buffer in model.buffers()]
        model.zero_grad(set_to_none=True)
        self._restore(model)
        return Result(loss, gradients, buffers)

    def peak(self, contender: Contender) -> int:
        """Bytes of a step beyond those that are there before; run it once before."""
        return measure_peak(partial(contender.step, self.batch)).peak_bytes

    def outcome(self, contender: Contender) -> Outcome:
        """Peak and bits; the time is not known yet (a ratio of 0)."""
        found, expected = self.result(contender), self._expected
        pairs = list(zip(expected.gradients, found.gradients, strict=True))
        equal = torch.equal(expected.loss, found.loss) and all(_same(a, b) for a, b in pairs)
        buffers = all(map(torch.equal, expected.buffers, found.buffers))
        return Outcome(self.peak(contender), 0.0, equal, distance(pairs), buffers)

    def ratios(
        self, contenders: Mapping[str, Contender], repeats: int
    ) -> tuple[dict[str, float], float]:
        """Time over the plain step's for each, steps in turns; milliseconds of the plain one.

        Every round has plain steps among the others, not one beside a single neighbour: each ratio
        has their time below the line, and what ran just before a step is part of it (caches).
        """
        plain = partial(self.plain.step, self.batch)
        steps: dict[str, Callable[[], None]] = {}
        for place, (name, one) in enumerate(contenders.items()):
            if place % BESIDE == 0:
                steps[f"{PLAIN} {place}"] = plain
            steps[name] = partial(one.step, self.batch)
        steps[PLAIN] = plain
        # Processor time: other work on the machine does not count.
        times = measure_step_time(steps, repeats, settle=True, clock=time.process_time_ns)
        rounds = zip(*(times[name] for name in steps if name not in contenders), strict=True)
        base = [statistics.median(seconds) for seconds in rounds]
        ratios = {
            name: [a / b for a, b in zip(times[name], base, strict=True)] for name in contenders
        }
        return medians(ratios), 1e3 * statistics.median(base)

    def _restore(self, model: nn.Module) -> None:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), self._buffers, strict=True):
                buffer.copy_(value)


def distance(pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]]) -> float:
    """Largest distance of the second from the first, over the largest of the first."""
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    scale = max((float(a.abs().max()) for a, _ in both), default=0.0)
    most = max((float((a - b).abs().max()) for a, b in both), default=0.0)
    return most / scale if scale > 0 else most


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
