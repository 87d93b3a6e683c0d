"""A plain run and one by a plan, stopped in the middle and taken up by a fresh module."""

from __future__ import annotations

import functools
import gc
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import lowtide
from lowtide.frontends.torch.batches import split_batch
from lowtide.frontends.torch.costs.meter import measure_peak

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule
    from tests.models import Case

SETTLED = 10  # steps after which memory must be flat


@dataclass(frozen=True)
class Result:
    """What was seen.

    Attributes
    ----------
    steps, resumed_at
        Steps of both runs, and the step before which the planned one was resumed.
    budget_bytes, plain_bytes, predicted_bytes, measured_bytes
        The budget; the peak of forward and backward without recomputation, by the plan, and as
        measured in the last step, resident bytes included.
    recomputed, random_again
        Ops that the plan runs again, and random ones among them.
    equal_losses
        Leading steps whose loss has the bits of plain PyTorch's.
    equal_parameters
        Whether all parameters have the bits of plain PyTorch's at the end.
    settled_bytes, highest_bytes
        Peak of a whole step, optimizer included, beyond what was there before it: that of step
        `SETTLED` of each part, and the highest one after it.
    growth_bytes
        Bytes that a step after that one left behind at most; the garbage collector was off.
    first_loss, last_loss
        Of the planned run.
    """

    steps: int
    resumed_at: int
    budget_bytes: int
    plain_bytes: int
    predicted_bytes: int
    measured_bytes: int
    recomputed: int
    random_again: int
    equal_losses: int
    equal_parameters: bool
    settled_bytes: tuple[int, ...]
    highest_bytes: int
    growth_bytes: int
    first_loss: float
    last_loss: float

    @property
    def ok(self) -> bool:
        """Whether everything is as it should be."""
        return (
            self.equal_losses == self.steps
            and self.equal_parameters
            and set(self.settled_bytes) == {self.highest_bytes}
            and self.growth_bytes == 0
            and self.measured_bytes == self.predicted_bytes <= self.budget_bytes
        )


def study(
    make: Callable[[], Case], *, steps: int, budget: str, time_limit: float, seed: int = 0
) -> Result:
    """Train `steps` steps of AdamW twice, each on a batch of its own, and compare.

    Parameters
    ----------
    make
        Makes the model, its loss and batches; each time with the parameters that the state of the
        random generator gives.
    budget, time_limit
        As `lowtide.fit` takes them.
    """
    losses, final = _plain(make, steps, seed)
    torch.manual_seed(seed)
    case = make()
    middle = steps // 2
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        run = _Run(_fitted(case, budget, time_limit), case)
        torch.manual_seed(seed + 1)
        run.train(range(middle))
        run.save(checkpoint)
        torch.manual_seed(seed + 2)  # other parameters, and another random state
        case = make()
        resumed = _Run(_fitted(case, budget, time_limit), case)
        resumed.load(checkpoint)
        resumed.train(range(middle, steps))
    parts = (run, resumed)
    planned = run.losses + resumed.losses
    differing = [i for i, (a, b) in enumerate(zip(losses, planned, strict=True)) if a != b]
    module = resumed.module
    graph, computes = module.captured.graph, module.plan.schedule.computes()
    again = {op for op in computes if computes.count(op) > 1}
    end = module.state_dict()
    return Result(
        steps=steps,
        resumed_at=middle,
        budget_bytes=module.plan.budget_bytes,
        plain_bytes=lowtide.simulate(graph, lowtide.Schedule.keep_everything(graph)).peak_bytes,
        predicted_bytes=module.peak_bytes,
        measured_bytes=graph.resident_bytes + resumed.peak_alone(steps),
        recomputed=module.plan.schedule.recomputes(),
        random_again=sum(graph.ops[op].restores >= 0 for op in again),
        equal_losses=differing[0] if differing else steps,
        equal_parameters=all(torch.equal(end[name], t) for name, t in final.items()),
        settled_bytes=tuple(part.peaks[SETTLED - 1] for part in parts),
        highest_bytes=max(max(part.peaks[SETTLED - 1 :]) for part in parts),
        growth_bytes=max(max(part.left[SETTLED - 1 :]) for part in parts),
        first_loss=_number(planned[0]),
        last_loss=_number(planned[-1]),
    )


def _plain(make: Callable[[], Case], steps: int, seed: int) -> tuple[list[bytes], dict[str, Any]]:
    """Losses and last parameters of the plain run."""
    torch.manual_seed(seed)
    case = make()
    torch.manual_seed(seed + 1)
    run = _Run(case.model, case)
    run.train(range(steps))
    return run.losses, case.model.state_dict()


def _fitted(case: Case, budget: str, time_limit: float) -> ReplayModule:
    return lowtide.fit(
        case.model, case.batch(0), memory_budget=budget, loss_fn=case.loss_fn,
        optimizer="adamw", time_limit=time_limit,
    )  # fmt: skip


class _Run:
    """A module in training; losses as bytes, so that equal means equal bits."""

    def __init__(self, module: Any, case: Case) -> None:
        self.module = module
        self.case = case
        self.loss_fn = case.loss_fn if module is case.model else None
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        self.losses: list[bytes] = []
        self.peaks: list[int] = []
        self.left: list[int] = []

    def train(self, numbers: range) -> None:
        """These steps, with the garbage collector off."""
        gc.collect()
        gc.disable()
        try:
            for number in numbers:
                batch = self.case.batch(number)
                step = functools.partial(self._step, batch)
                reading = measure_peak(step, collect=False)
                self.losses.append(reading.result)
                self.peaks.append(reading.peak_bytes)
                self.left.append(reading.end_bytes)
        finally:
            gc.enable()

    def _step(self, batch: Any) -> bytes:
        loss = self._backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return struct.pack("f", loss.item())

    def _backward(self, batch: Any) -> torch.Tensor:
        _, args, kwargs = split_batch(batch)
        out = self.module(*args, **kwargs)
        loss: torch.Tensor = out if self.loss_fn is None else self.loss_fn(out)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def peak_alone(self, number: int) -> int:
        """Peak of forward and backward of one more step."""
        batch = self.case.batch(number)
        peak = measure_peak(lambda: self._backward(batch)).peak_bytes
        self.optimizer.zero_grad()
        return peak

    def save(self, path: Path) -> None:
        """What a run needs to go on."""
        torch.save(
            {
                "module": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "random": torch.get_rng_state(),
            },
            path,
        )

    def load(self, path: Path) -> None:
        """Go on from there."""
        state = torch.load(path)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])


def _number(bits: bytes) -> float:
    (value,) = struct.unpack("f", bits)
    return float(value)
