"""PyTorch's own splits among the choices of `lowtide.backend`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lowtide
from experiments.pytorch.study import Share
from lowtide.frontends.torch.compile.joint import joint_graph
from lowtide.frontends.torch.compile.private import copy_of, merge_equal_nodes
from lowtide.frontends.torch.costs.machine import PRESETS
from lowtide.runtime.compile import own, planners, tell
from lowtide.runtime.compile.own import SHARES, Task
from lowtide.runtime.compile.planners import keep_everything, plan_for
from lowtide.runtime.compile.survey import Surveyed, survey
from lowtide.runtime.plans.plan_cache import solve_cached
from lowtide.runtime.plans.settings import solving
from lowtide.solver.errors import NoPlanError

if TYPE_CHECKING:
    from lowtide.runtime.compile.own import Own
    from lowtide.runtime.compile.survey import Survey

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),  # inductor's imports
]


@pytest.fixture(autouse=True)
def _fresh(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing planned before, either."""
    monkeypatch.setattr(planners, "_made", {})


class Gelus(nn.Module):
    """Linear layers with GELU, and the mean square of the result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [item for _ in range(6) for item in (nn.Linear(32, 32), nn.GELU("tanh"))]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Loss."""
        out: torch.Tensor = self.layers(x)
        return out.pow(2).mean()


def surveyed(model: nn.Module, batch: torch.Tensor) -> Survey:
    """What is known of the joint graph of a model before it is split."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    found: list[Survey] = []

    def split(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        merge_equal_nodes(gm)
        joint = joint_graph(
            gm.graph, kwargs["num_fwd_outputs"], name="test", machine=PRESETS["cpu"]
        )
        try:
            survey(Task(gm, inputs, kwargs, joint, 1, joint.graph.resident_bytes))
        except Surveyed as way_out:
            found.append(way_out.survey)
        return torch._functorch.partitioners.default_partition(gm, inputs, **kwargs)

    def interpret(part: Any, values: Any) -> Any:
        return make_boxed_func(part.forward)

    backend: Any = aot_autograd(fw_compiler=interpret, bw_compiler=interpret, partition_fn=split)
    torch.compile(model, backend=backend)(batch)
    return found[0]


def own_of(found: Survey) -> tuple[Own, ...]:
    """PyTorch's splits, of which there are several kinds."""
    assert {one.light for one in found.own} == {True, False}
    return found.own


def test_shares_of_pytorch_are_plans() -> None:
    """Less is saved, and more computed again, as the share falls; each split stands once."""
    found = surveyed(Gelus(), torch.randn(256, 32))
    splits = own_of(found)
    assert [one.share for one in splits] == sorted((one.share for one in splits), reverse=True)
    assert splits[0].share == 1.0
    assert splits[-1].share == 0.0
    assert len(splits) < len(SHARES)
    saved = [one.saved_bytes for one in splits]
    assert saved == sorted(saved, reverse=True)
    assert splits[-1].saved_bytes == 0
    times = [one.plan.time_ns for one in splits]
    assert times == sorted(times)
    assert splits[0].plan.schedule.recomputes() < splits[-1].plan.schedule.recomputes()
    # Everything is saved: as much as one layer's results for each of them, at least.
    assert found.kept_bytes >= 6 * 256 * 32 * 4


def test_a_rung_is_no_slower_than_what_pytorch_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the peak of each of its splits the plan is as fast, even if the search finds none."""
    found = surveyed(Gelus(), torch.randn(256, 32))
    known = [one.plan for one in own_of(found)]
    top = keep_everything(found.graph, 1)
    settings = solving(0.5, 0)

    def nothing(*args: Any, **kwargs: Any) -> Any:
        raise NoPlanError("none")

    for find in (solve_cached, nothing):
        monkeypatch.setattr(planners, "solve_cached", find)
        monkeypatch.setattr(planners, "_made", {})
        for one in known:
            if one.peak_bytes < top.peak_bytes:
                plan = plan_for(found.graph, one.peak_bytes, settings, top, known)
                assert plan is not None
                assert plan.budget_bytes == one.peak_bytes
                assert plan.peak_bytes <= one.peak_bytes
                assert plan.time_ns <= one.time_ns


def test_a_plan_that_fits_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a larger budget that fits a smaller one is its plan, in other processes, too."""
    found = surveyed(Gelus(), torch.randn(256, 32))
    top = keep_everything(found.graph, 1)
    settings = solving(2.0, 0)
    above = plan_for(found.graph, top.peak_bytes * 9 // 10, settings, top)
    assert above is not None

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr("lowtide.runtime.plans.plan_cache.solve", never)
    for start in (above, top):  # the second time from the file, whatever it would begin with
        monkeypatch.setattr(planners, "_made", {})
        plan = plan_for(found.graph, above.peak_bytes, settings, start)
        assert plan is not None
        assert plan.steps == above.steps
        assert plan.budget_bytes == above.peak_bytes


def test_what_comes_first_is_pytorchs_default() -> None:
    """Then the plan without recomputation, then what recomputes no library's work, in order."""
    found = surveyed(Gelus(), torch.randn(256, 32))
    top = keep_everything(found.graph, 1)
    first = found.first(top)
    choices = [choice for choice, _ in first]
    assert choices[0] is found.own[0]
    assert choices[1] is top
    light = [one for one in found.own if one.light]
    assert choices[2:] == light[1:]
    assert len(light) > 1
    assert all(least >= found.outside_bytes for _, least in first)


def test_large_graphs_have_the_largest_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's minimum cuts take long there; those at small shares never come first."""
    whole = surveyed(Gelus(), torch.randn(256, 32))
    torch._dynamo.reset()
    monkeypatch.setattr(own, "MANY_OPS", len(whole.graph.ops) - 1)
    shares = [one.share for one in surveyed(Gelus(), torch.randn(256, 32)).own]
    assert shares == [one.share for one in whole.own if one.share in SHARES[: own.FEW]]
    assert len(shares) < len(whole.own)


def test_parts_that_the_user_marks_have_no_splits_of_pytorchs() -> None:
    """Checkpoints inside the model may save generators' states: left to the plans."""

    class Marked(Gelus):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.utils.checkpoint.checkpoint(
                super().forward, x, use_reentrant=False
            )
            return out

    assert surveyed(Gelus(), torch.randn(256, 32)).own
    torch._dynamo.reset()
    assert surveyed(Marked(), torch.randn(256, 32)).own == ()


def test_a_copy_of_a_graph_knows_its_parameters() -> None:
    """What dynamo notes beside the graph decides what PyTorch's partitioner saves."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    known: list[list[int]] = []

    def split(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        known.append(kwargs["static_lifetime_input_indices"])
        return torch._functorch.partitioners.default_partition(gm, inputs, **kwargs)

    def interpret(part: Any, values: Any) -> Any:
        return make_boxed_func(part.forward)

    def backend(gm: Any, inputs: Any) -> Any:
        run: Any = aot_autograd(fw_compiler=interpret, bw_compiler=interpret, partition_fn=split)
        run(copy_of(gm), inputs)
        return run(gm, inputs)

    torch.compile(Gelus(), backend=backend)(torch.randn(8, 32))
    assert known[0] == known[1]
    assert len(known[0]) == 12


def test_long_compilations_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing for some seconds, then lines ever further apart."""
    now = [0.0]
    monkeypatch.setattr("lowtide.runtime.compile.tell.time.monotonic", lambda: now[0])
    teller = tell.Teller()
    teller.about = "a net (7 ops)"
    with caplog.at_level(logging.WARNING):
        for second in range(60):
            now[0] = float(second)
            teller(f"step {second}")
    said = [message.split(": ")[-1] for message in caplog.messages]
    assert said == [f"step {n} ({n} s)" for n in (3, 6, 12, 24, 48)]
    assert "torch.compile of a net (7 ops)" in caplog.messages[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", [1.0, 0.9])
def test_the_program_is_pytorchs_own_where_it_fits(share: float) -> None:
    """A budget with room for PyTorch's program gets just that, to the letter."""
    model, batch = Gelus(), torch.randn(256, 32)
    stock = Share(share)
    torch.compile(model, backend=stock)(batch).backward()
    torch._dynamo.reset()
    found = surveyed(model, batch)
    torch._dynamo.reset()
    split = next(one for one in found.own if one.share == share)
    backend = lowtide.backend(split.plan.peak_bytes * 21 // 20, time_limit=5.0)
    torch.compile(model, backend=backend)(batch).backward()
    (planned,) = backend.planned
    assert planned.share == share
    assert planned.program == stock.watch.digest() != ""
    assert planned.peak_bytes is not None
    assert planned.peak_bytes <= planned.budget_bytes
