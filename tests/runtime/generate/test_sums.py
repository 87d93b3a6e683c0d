"""Gradients that are sums: with others from elsewhere they are added up as in plain PyTorch."""

from __future__ import annotations

import copy
import logging
import random
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.generate.sums import Sums, sums_of
from lowtide.runtime.replay import replay
from lowtide.runtime.step.probes import Look, Seeds
from lowtide.runtime.wiring import Wiring
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ..schedules import plan_of, random_schedule, reordered
from ..summed import (  # fmt: skip
    LOSSES,
    WIDTH,
    Loop,
    Narrow,
    Passed,
    Shared,
    Tied,
    captured_of,
    gradients,
    replayed,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("order", ["kept", "recomputed", "reordered", "placed", "accumulating"])
@pytest.mark.parametrize("kind", [Tied, Shared, Passed, Loop, Narrow])
def test_as_in_plain_pytorch(
    kind: type[nn.Module], order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bits and strides, whatever comes before and after, in one stage and in several."""
    model, captured = captured_of(kind)
    captured = captured.accumulating() if order == "accumulating" else captured
    graph = captured.graph
    schedule = Schedule.keep_everything(graph)
    if order == "recomputed":
        schedule = random_schedule(graph, random.Random(3), drop=0.5)
    elif order == "reordered":
        schedule = reordered(graph, random.Random(3))
    module = replayed(captured, schedule, arena=order == "placed")
    caplog.set_level(logging.WARNING)
    for stages in (1, 3):
        wiring = Wiring(captured.program, module.plan.schedule, stages=stages, arena=module.arena)
        assert wiring.sums is not None
        module.__dict__["_wiring"] = wiring
        for name, loss in LOSSES.items():
            for how in ("once", "retained", "accumulated", "of one weight", "of inputs"):
                expected = gradients(model, loss, how)
                found = gradients(module, loss, how)
                for a, b in zip(expected, found, strict=True):
                    assert (a is None) == (b is None), (name, how)
                    if a is not None:
                        assert torch.equal(a, b), (name, how)
                        assert a.stride() == b.stride(), (name, how)
    assert "more than once" not in caplog.text


def test_parts_are_those_of_the_engine() -> None:
    """What arrives for a tensor counts, not what arrived for one that it was added to."""

    def parts(kind: type[nn.Module]) -> dict[str, int]:
        program = captured_of(kind)[1].program
        return {program.inputs[s.input].fqn or "x": s.parts for s in program.gradients}

    assert parts(Tied) == {"table.weight": 2, "lin.weight": 1, "lin.bias": 1, "x": 1}
    shared = {"lin.weight": 3, "lin.bias": 3, "weight": 2, "scale": 2, "x": 3}
    assert parts(Shared) == shared
    assert parts(Passed) == {"first": 2, "second": 3, "x": 4}


def test_nothing_to_ask() -> None:
    """Where nothing is used twice there are no probes."""
    captured = capture(nn.Linear(4, 4), torch.ones(3, 4))
    assert replayed(captured)._wiring.sums is None


def _rows(table: torch.Tensor) -> torch.Tensor:
    return nn.functional.embedding(torch.arange(9) * 2, table, sparse=True)


def test_in_narrow_types_and_other_layouts() -> None:
    """Outside gradients that are expanded, transposed or sparse, and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = Tied().to(dtype)
        x = torch.randn(7, WIDTH, dtype=dtype)
        module = replayed(capture(copy.deepcopy(model), x))
        for outside in (
            lambda w: w.sum() * 0.37,
            lambda w: (w.t().contiguous() * 0.37).sin().sum(),
            lambda w: _rows(w).sin().sum(),
        ):
            for net in (model, module):
                net.zero_grad()
                table: Any = net.table
                (net(x).square().mean() + outside(table.weight)).backward()
            for a, b in zip(model.parameters(), module.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]


def test_takes_no_more_memory() -> None:
    """What came before is let go where it is added to."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer := nn.Linear(64, 64), nn.Tanh(), layer, nn.Tanh(), layer])
    x = torch.randn(4, 64)
    captured = capture(model, x, lambda out: out.square().mean())
    module = replayed(captured)
    assert module._wiring.code.extra == ()
    direction = torch.randn(64, 64)

    def peak(outside: bool) -> int:
        def step() -> Any:
            loss = module(x)
            loss = loss + (layer.weight * direction).sum() if outside else loss
            loss.backward()

        module.zero_grad()
        return measure_peak(step).peak_bytes

    peak(True)
    there = 2 * 64 * 64 * 4  # the product, and the gradient that comes before
    assert peak(True) <= peak(False) + there


def test_warns_if_the_budget_does_not_allow_for_it() -> None:
    """Once, and only if something comes before: where the second part's memory was to be used."""
    torch.manual_seed(0)
    lin = nn.Linear(64, 64, bias=False)

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = lin

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.lin(x)

    captured = capture(Skip(), torch.randn(128, 64).requires_grad_())
    graph, schedule = captured.graph, Schedule.keep_everything(captured.graph)
    tight = plan_of(graph, schedule)
    tight = plan_of(graph, schedule, budget_bytes=tight.peak_bytes)
    module = replay(captured, tight)
    need = module._wiring.begun_peak_bytes
    assert tight.peak_bytes < need <= tight.peak_bytes + 128 * 64 * 4

    def step(net: Any, skip: bool) -> Any:
        x = torch.randn(128, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        before = x * 1
        out = net(before).sin()
        (out + before if skip else out).sum().backward()
        return x.grad

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(module, False)
        roomy = replay(captured, plan_of(graph, schedule, budget_bytes=need))
        step(roomy, True)
    with pytest.warns(UserWarning, match="more than its budget") as told:
        step(module, True)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(step(module, True), step(captured.model, True))


def test_in_anomaly_mode() -> None:
    """Probes hold no NaN."""
    model, captured = captured_of(Tied)
    module = replayed(captured)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            expected = gradients(model, LOSSES["all"], "once")
            found = gradients(module, LOSSES["all"], "once")
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_what_comes_in_the_middle_is_not_lost() -> None:
    """Nodes made in several threads have no order: theirs may come between probe and sum."""
    look = Look((2,), (1,), torch.float32, torch.device("cpu"))
    first, second = Seeds([look]), Seeds([look])
    (one,), (two,) = first.probes, second.probes
    assert one is not None
    assert two is not None
    with torch.no_grad():
        there = torch.tensor([1.0, 2.0]) + one
        first.close()
        assert there is one
        assert first.found(0)
        assert there + two is one
        second.close()
        assert one + torch.tensor([10.0, 20.0]) is one
        second.deliver([0])
        assert one + torch.tensor([100.0, 200.0]) is one
        first.deliver([0])
        total = one + torch.tensor([1000.0, 2000.0])
        assert type(total) is torch.Tensor
        assert total.tolist() == [1111.0, 2222.0]
        with pytest.raises(ReplayError, match="read in the middle"):
            one.sin()


def test_told_once_where_it_is_not_so(caplog: pytest.LogCaptureFixture) -> None:
    """A sum that does not begin in backward is added up otherwise, and a log line says so."""
    model, captured = captured_of(Tied)
    module = replayed(captured)
    wiring = module._wiring
    (item,) = sums_of(captured.program)
    assert len(item.adds) == 1
    source = wiring.code.source.replace("seeds.found(0)", "False")
    space: dict[str, Any] = dict(wiring.code.backward.__globals__)
    exec(source, space)  # as if the sum began in forward
    wiring.code = replace(wiring.code, backward=space["backward"], begun=frozenset())
    wiring.sums = Sums(captured.program, wiring.code)
    for name, times in (("decay first", 0), ("decay last", 1), ("decay last", 1)):
        expected = gradients(model, LOSSES[name], "once")
        found = gradients(module, LOSSES[name], "once")
        torch.testing.assert_close(expected, found)
        assert caplog.text.count("table.weight is used more than once") == times
