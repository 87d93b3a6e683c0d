"""Several steps inside one autocast context: exact, or refused where plain casts are shared."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.module import ReplayModule
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ..models import square
from ..schedules import plan_of

pytestmark = pytest.mark.usefixtures("one_thread")
X = torch.linspace(-1, 1, 32).reshape(4, 8)


def _cast(*, cached: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached)


def _both(*, cached: bool = True) -> tuple[nn.Module, ReplayModule]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with _cast(cached=cached):
        captured = capture(model, X, square, times="none")
    plan = plan_of(captured.graph, Schedule.keep_everything(captured.graph))
    return copy.deepcopy(model), replay(captured, plan)


def _step(run: nn.Module, x: torch.Tensor) -> Any:
    out = run(x)
    return out if isinstance(run, ReplayModule) else square(out)


def _same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(a.grad is not None and torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]


def test_backwards_of_one_context_apart_are_exact() -> None:
    """Each backward by itself rounds as the plain one."""
    plain, module = _both()
    for run in (plain, module):
        with _cast():
            losses = [_step(run, X), _step(run, 2 * X)]
            losses[1].backward()
        losses[0].backward()
    assert _same(plain, module)


def test_one_backward_through_two_calls_is_refused() -> None:
    """Plain PyTorch adds up their gradients in bfloat16; with a context each it does not."""
    plain, module = _both()
    with _cast():
        loss = module(X) + module(2 * X)
    with pytest.raises(ReplayError, match="one backward through two calls in the same autocast"):
        loss.backward()
    module.zero_grad()
    for run in (plain, module):
        losses = []
        for scale in (1, 2):
            with _cast():
                losses.append(_step(run, scale * X))
        (losses[0] + losses[1]).backward()
    assert _same(plain, module)


def test_steps_of_the_optimizer_inside_are_refused() -> None:
    """Plain PyTorch would go on with the casts of the old weights."""
    _, module = _both()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with _cast():
        module(X).backward()
        optimizer.step()
        with pytest.raises(ReplayError, match="changed since an earlier call in the same autocast"):
            module(X)
    with _cast():
        copy.deepcopy(module)(X).backward()
        module(X).backward()


def test_without_the_cache_all_of_it_is_exact() -> None:
    """Nothing is shared then."""
    plain, module = _both(cached=False)
    for run in (plain, module):
        optimizer = torch.optim.SGD(run.parameters(), 0.1)
        with _cast(cached=False):
            (_step(run, X) + _step(run, 2 * X)).backward()
            optimizer.step()
            _step(run, X).backward()
    assert _same(plain, module)


def test_looking_takes_no_memory() -> None:
    """The peak is that of a step which does not look."""
    _, module = _both()

    def step() -> None:
        with _cast():
            loss = module(X)
        loss.backward()

    peaks = []
    assert module._wiring.cast
    for looking in (True, True, False):
        if not looking:
            module._wiring.cast = ()
        peaks.append(measure_peak(step).peak_bytes)
        module.zero_grad()
    assert peaks[1] == peaks[2]
