"""Any order that the graph allows replays to the bits of the plain step and the predicted bytes."""

from __future__ import annotations

import functools
import gc
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowtide.frontends.torch.batches import split_batch
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.costs.profile import profile
from lowtide.frontends.torch.output import flatten_output
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.runtime.wiring import Wiring
from lowtide.solver.schedule import Schedule

from ...frontends import models as captured_models
from ...frontends.models import Lambda, Made, rows
from ...frontends.reference import differences, fresh, outcome, run_eager
from ...models import ZOO as END_TO_END
from ...models import make
from ..models import SMALL, TRANSFORMERS, profiled
from ..schedules import lazy_frees, moved_ops, plan_of, reordered, unmarked

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")

SPREADS = (0.03, 0.2, 1.0, 3.0)


class Save(torch.autograd.Function):
    """Saves what only backward reads; its gradients need none, and the last one draws."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Round; save what rounding does not need."""
        ctx.save_for_backward((x.abs() < 1).float().tanh(), w.exp(), v)
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A masked gradient, one of the saved values alone, and noise."""
        mask, w, v = ctx.saved_tensors
        return grad * mask, w.sin() * 2, torch.rand_like(v)


def both_ways() -> Made:
    """Forward ops that can run in backward, backward ops that can run in forward, and draws."""

    def body(self: Any, x: torch.Tensor) -> Any:
        h = F.dropout(self.lin(x), 0.3)
        h = Save.apply(h, self.weight, self.other)  # type: ignore[no-untyped-call]
        return F.dropout(h.sin() @ self.weight.detach(), 0.2) + self.lin(x)

    model = Lambda(body)
    model.other = nn.Parameter(torch.randn(3))
    return model, (rows().requires_grad_(),), lambda out: out.square().mean()


def state() -> Made:
    """Buffers and the input change in forward, between ops that read the old contents."""

    def body(self: Any, x: torch.Tensor) -> Any:
        old = self.one * 1.5
        h = self.norm(self.lin(x * 1.0)) * self.one.exp()
        self.one.add_(h.detach().mean(0))
        x.mul_(2.0)
        h = self.norm(h * (x + 0.0))
        return {"loss": (h * self.one).square().mean(), "old": old, "hidden": h}

    return Lambda(body, norm=nn.BatchNorm1d(4)), (rows(),), None


ZOO: tuple[Callable[[], Made], ...] = (
    both_ways,
    state,
    *(make for make in captured_models.EXACT if make is not captured_models.penalty),
)


@dataclass(frozen=True)
class Subject:
    """A profiled step, its batch, and the state that each run starts from."""

    captured: Captured
    batch: Any
    state: dict[str, torch.Tensor]

    def start(self) -> Any:
        """Put the state back; a fresh batch."""
        self.captured.model.zero_grad()
        with torch.no_grad():
            self.captured.model.load_state_dict(self.state)
        return fresh(self.batch)


@functools.cache
def subject(make: Callable[[], Made]) -> Subject:
    """The step of a model, profiled once."""
    torch.manual_seed(3)
    model, batch, loss = make()
    captured = profile(capture(model, batch, loss), budget_s=0.01, cache=False)
    return Subject(captured, batch, {k: v.clone() for k, v in model.state_dict().items()})


def run_replayed(module: ReplayModule, args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """Forward, and backward from every differentiable output; all that the caller holds."""
    leaves, _ = flatten_output(module(*args, **kwargs))
    specs = module.captured.program.outputs
    roots = [leaf for leaf, spec in zip(leaves, specs, strict=True) if spec.differentiable]
    tangents = [torch.ones_like(root) for root in roots]
    torch.autograd.backward(roots, tangents)
    return leaves, tangents


def compare(of: Subject, module: ReplayModule) -> list[str]:
    """What differs from the plain step: outputs, gradients, buffers, inputs, the generator."""

    def replayed(_: Captured, args: Any, kwargs: Any) -> list[Any]:
        leaves, _tangents = run_replayed(module, args, kwargs)
        return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    plain = outcome(of.captured, of.start(), run_eager, 5)
    return differences(plain, outcome(of.captured, of.start(), replayed, 5))


def excess(of: Subject, module: ReplayModule) -> int:
    """Measured minus simulated peak in bytes."""
    _, args, kwargs = split_batch(of.start())
    gc.disable()
    try:
        step = functools.partial(run_replayed, module, args, kwargs)
        measured = measure_peak(step, collect=False).peak_bytes
    finally:
        gc.enable()
    return measured - (module.plan.peak_bytes - of.captured.graph.resident_bytes)


@pytest.mark.parametrize("make", ZOO)
def test_any_order_is_exact(make: Callable[[], Made]) -> None:
    """Random orders with random recomputations: every bit of the plain step, every byte."""
    of = subject(make)
    graph = of.captured.graph
    for seed, spread in enumerate(SPREADS):
        boundary: Any = ("any", "early", "late")[seed % 3]
        schedule = reordered(
            graph, random.Random(seed), spread=spread, drop=0.2 * seed, boundary=boundary
        )
        module = replay(of.captured, plan_of(graph, schedule))
        assert compare(of, module) == [], (seed, boundary)
        assert excess(of, module) == 0, (seed, boundary)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "views"])
def test_training_in_any_order_is_exact(name: str) -> None:
    """Three AdamW steps in another order agree in every bit, the peak in every byte."""
    case, captured = profiled(name)
    schedule = reordered(captured.graph, random.Random(len(name)), spread=0.5)
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(case.model, module, [case.batch(i) for i in range(3)], repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", [*SMALL, *TRANSFORMERS])
def test_many_orders_are_exact(name: str, seed: int) -> None:
    """More of the same, for transformers too."""
    case, captured = profiled(name)
    rng = random.Random(seed)
    schedule = reordered(captured.graph, rng, spread=rng.choice(SPREADS), drop=rng.random())
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(case.model, module, [case.batch(i) for i in range(3)], repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes


def test_ops_cross_the_boundary_both_ways() -> None:
    """With the boundary early some forward ops run in backward; with it late, the reverse."""
    of = subject(both_ways)
    moved = [
        moved_ops(of.captured.graph, reordered(of.captured.graph, random.Random(1), boundary=b))
        for b in ("early", "late")
    ]
    assert moved[0][0] > 0
    assert moved[1][1] > 0


@pytest.mark.parametrize("make", [both_ways, state, captured_models.random_kinds])
def test_what_the_graph_adds_is_needed(make: Callable[[], Made]) -> None:
    """With data flow alone in the graph, most orders would be refused or change results."""
    from lowtide.solver.errors import LowtideError

    of = subject(make)
    program = unmarked(of.captured.program)
    wrong = 0
    for seed in range(4):
        schedule = reordered(program.graph, random.Random(seed), drop=0.0, extra=0.0)
        module = replay(
            of.captured, plan_of(of.captured.graph, Schedule.keep_everything(of.captured.graph))
        )
        try:
            module.__dict__["_wiring"] = Wiring(program, schedule)
            wrong += bool(compare(of, module))
        except LowtideError:
            wrong += 1
    assert wrong > 0


@pytest.mark.parametrize("make", [both_ways, captured_models.cnn, captured_models.gpt])
def test_late_frees_are_counted(make: Callable[[], Made]) -> None:
    """A plan may free later than it could, or never: then the bytes stay, as it says."""
    of = subject(make)
    graph = of.captured.graph
    for seed in range(3):
        rng = random.Random(seed)
        schedule = lazy_frees(graph, reordered(graph, rng, boundary="late"), rng)
        module = replay(of.captured, plan_of(graph, schedule))
        assert compare(of, module) == []
        assert excess(of, module) == 0


@pytest.mark.parametrize(
    "make", [both_ways, captured_models.frozen, captured_models.one_module_twice]
)
def test_many_stages_in_any_order(make: Callable[[], Made]) -> None:
    """Gradients that leave one by one, over two backwards that add up, have the plain bits."""
    of = subject(make)
    graph = of.captured.graph
    for seed, boundary in enumerate(("any", "early", "late")):
        schedule = reordered(graph, random.Random(seed), boundary=boundary)  # type: ignore[arg-type]
        module = replay(of.captured, plan_of(graph, schedule))
        module.__dict__["_wiring"] = Wiring(of.captured.program, schedule, stages=100)
        found = []
        for run in (functools.partial(run_eager, of.captured), functools.partial(_run, module)):
            _, args, kwargs = split_batch(of.start())
            torch.manual_seed(2)
            for _ in range(2):
                run(args, kwargs)
            found.append([p.grad for p in of.captured.model.parameters()])
        assert all(map(_same, *found)), boundary


def _run(module: ReplayModule, args: Any, kwargs: Any) -> list[Any]:
    return run_replayed(module, args, kwargs)[0]


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def test_interleaved_steps_in_any_order() -> None:
    """Two forwards, then their backwards in reverse: each has its own random numbers."""
    of = subject(captured_models.random_kinds)
    graph = of.captured.graph
    model = of.captured.model
    for seed in range(3):
        module = replay(of.captured, plan_of(graph, reordered(graph, random.Random(seed))))
        found = []
        for run in (model, module):
            _, args, kwargs = split_batch(of.start())
            torch.manual_seed(2)
            losses = [run(*args, **kwargs) for _ in range(2)]
            for loss in reversed(losses):
                loss.backward()
            found.append([*(p.grad for p in model.parameters()), torch.get_rng_state()])
        assert all(map(_same, *found))


def test_a_gradient_made_in_forward_is_handed_out_twice() -> None:
    """With retain_graph each backward gives the caller memory of his own."""
    of = subject(both_ways)
    graph = of.captured.graph
    schedule = reordered(graph, random.Random(1), boundary="late")
    module = replay(of.captured, plan_of(graph, schedule))
    (early,) = module._wiring.code.early
    fqn = of.captured.program.inputs[of.captured.program.gradients[early].input].fqn
    assert fqn == "weight"
    weight: Any = of.captured.model.get_parameter(fqn)
    loss = module(*of.start())
    (first,) = torch.autograd.grad(loss, weight, retain_graph=True)
    wanted = first.clone()
    first.zero_()
    (second,) = torch.autograd.grad(loss, weight)
    assert torch.equal(second, wanted)


def test_an_input_that_the_caller_drops_counts_to_the_end() -> None:
    """Inputs count as resident: a caller who lets go of one early can only take less."""
    case, captured = profiled("mlp")
    graph = captured.graph
    rest = graph.resident_bytes - case.batch(0)[0].nbytes
    for seed in range(3):
        schedule = reordered(graph, random.Random(seed), drop=0.5)
        module = replay(captured, plan_of(graph, schedule))

        def step(module: ReplayModule = module) -> Any:
            loss = module(torch.randn(7, 24))
            loss.backward()
            return loss

        measured = measure_peak(step).peak_bytes
        case.model.zero_grad()
        assert measured <= module.plan.peak_bytes - rest


@pytest.mark.slow
@pytest.mark.parametrize("name", END_TO_END)
def test_the_zoo_in_any_order(name: str) -> None:
    """The larger steps that other tests share, in two other orders each."""
    case = make(name)
    captured = profile(capture(case.model, case.batch(0), case.loss_fn), budget_s=5, cache=False)
    for seed, spread in ((0, 0.1), (1, 2.0)):
        schedule = reordered(captured.graph, random.Random(seed), spread=spread, drop=0.1)
        module = replay(captured, plan_of(captured.graph, schedule))
        found = verify(case.model, module, [case.batch(i) for i in range(2)], repeats=1)
        assert found.ok, found.first_difference
        assert found.replay_peak_bytes == found.predicted_peak_bytes
