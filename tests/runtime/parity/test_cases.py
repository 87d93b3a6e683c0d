"""Public trap models, from the folder LOWTIDE_CASES: replayed exactly, or refused by name.

Each runs plainly and by plans with much recomputation, over all its batches. Losses, gradients
(also whether they are None, their type and layout), buffers, inputs, hooks and the random state
must be equal in every bit, and the peak of a step the one that was predicted.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import _pytree as pytree

from lowtide.frontends.torch.batches import split_batch
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.parity.verify_measure import copy_batch
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.smallest import smallest_budget

from ...frontends.test_cases import FILES, FOLDER, load
from ...plans import recomputing
from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lowtide.runtime.module import ReplayModule
    from lowtide.solver.graph import Graph

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not FILES, reason="no folder of cases"),
    pytest.mark.filterwarnings("ignore"),
]
# when captured, or when a later batch comes
REFUSED = {
    "case15_sparse_embedding": "sparse gradients",
    "case25_data_dependent_control_flow": "needs the value of a tensor",
    "case35_hooks": "has a forward hook",
}
REFUSED_LATER = {
    "case08_nontensor_args": "was made for the value 0.5",
    "case26_last_smaller_batch": "has shape",
}
# What they keep is small beside gradients or beside the generator's state, which a rerun needs:
# the smallest budget is met in another order alone.
NOTHING_TO_RECOMPUTE = {
    "case01_dropout_train",
    "case02_dropout_eval_grad",
    "case07_input_grads",
    "case10_structured_outputs",
    "case19_retain_graph_twice",
    "case22_no_grad_teacher_and_detach",
    "case30_checkpoint_inside",
    "case33_outputs_alias_inputs",
}
LARGE = ("case31",)  # ten thousand ops
LONG = ("case14", *LARGE)
# Planning them takes more than 3 s.
LONG_WITH_FIT = (
    "case01", "case03", "case05", "case06", "case11", "case17", "case18", "case23", "case39", *LONG
)  # fmt: skip
PATHS = [
    pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem[:6] in LONG else ())
    for path in FILES
]
WITH_FIT = [
    pytest.param(
        path, id=path.stem, marks=pytest.mark.slow if path.stem[:6] in LONG_WITH_FIT else ()
    )
    for path in FILES
]


def judge() -> Any:
    """The folder's own comparison."""
    sys.path.insert(0, str(FOLDER))
    try:
        return load(FOLDER / "run_cases.py")
    finally:
        sys.path.remove(str(FOLDER))


def used_up(batch: Any) -> bool:
    """Whether one backward uses up the graph that a batch comes from."""
    leaves = pytree.tree_leaves(batch)
    return any(isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in leaves)


def tight(graph: Graph) -> int:
    """Bytes a little above the smallest budget that can be met."""
    small = smallest_budget(graph)
    plain = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    return small + max(0, plain - small) // (3 if len(graph.ops) > 1000 else 20)


def run(path: Path, how: str, made: list[ReplayModule] | None = None) -> dict[str, Any]:
    """All batches of a case, or its example three times if it can be: what the folder compares.

    `how`: `plain`, by `fit` with room for everything, by `fit` within a `tight` budget, or by a
    plan that recomputes `all` or `some`. The module goes into `made`.
    """
    tools, case = judge(), load(path)
    example: Any = None
    losses: list[Any] = []

    def wrap(model: Any, _mode: str, loss_fn: Any) -> Any:
        if how == "plain":
            return lambda *args: loss_fn(model(*args))
        batch = case.batches()[0]
        if how in ("fit", "tight"):
            budget: str | int = "100%"
            if how == "tight":
                budget = tight(capture(model, batch, loss_fn, times="roofline").graph)
            module = fit(
                model, batch, memory_budget=budget, loss_fn=loss_fn, times="roofline",
                time_limit=60 if path.stem[:6] in LARGE else 9,
            )  # fmt: skip
        else:
            captured = capture(model, batch, loss_fn, times="none")
            graph = captured.graph
            schedule = recomputing(graph, len(graph.ops))
            if how == "some" and len(graph.ops) < 1000:
                schedule = random_schedule(graph, random.Random(0), drop=0.5)
            module = replay(captured, plan_of(graph, schedule))
        if made is not None:
            made.append(module)
        return module

    make = case.make

    def remembered() -> Any:
        nonlocal example
        model, example, loss = make()
        losses.append(loss)
        return model, example, lambda out: out

    case.make = remembered
    if not hasattr(case, "batches"):
        case.batches = lambda: [example] * (1 if used_up(example) else 3)
    tools.wrap = lambda model, mode, _loss: wrap(model, mode, losses[-1])
    state: dict[str, Any] = tools.run(case, "replayed")
    return state


@pytest.mark.parametrize("path", PATHS)
def test_case_replays_exactly_or_is_refused(path: Path) -> None:
    """No case is silently wrong."""
    if path.stem in REFUSED:
        with pytest.raises(CaptureError, match=REFUSED[path.stem]):
            run(path, "all")
        return
    if path.stem in REFUSED_LATER:
        with pytest.raises(ReplayError, match=REFUSED_LATER[path.stem]):
            run(path, "all")
        return
    plain = run(path, "plain")
    for how in ("all", "some"):
        assert judge().diff(plain, run(path, how), True) == [], how


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of measurements for this module: the machine's own speed is measured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path_factory.mktemp("measured")))
        yield


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("path", [param for param in PATHS if param.id not in REFUSED])
def test_case_takes_the_predicted_peak(path: Path) -> None:
    """To the byte: with everything kept, and with everything run again."""
    model, example, loss = load(path).make()
    captured = profile(capture(model, example, loss, times="none"), budget_s=0.1)
    graph = captured.graph
    batch = copy_batch(example) if used_up(example) else example
    _, args, kwargs = split_batch(batch)
    trained = [*model.parameters(), *pytree.tree_leaves(batch)]
    for schedule in (Schedule.keep_everything(graph), recomputing(graph, len(graph.ops))):
        plan = plan_of(graph, schedule)
        module = replay(captured, plan)

        def step(module: ReplayModule = module) -> Any:
            out = module(*args, **kwargs)
            out.backward()
            return out

        def clear() -> None:
            for leaf in trained:
                if isinstance(leaf, torch.Tensor):
                    leaf.grad = None

        step()
        clear()
        assert measure_peak(step).peak_bytes == plan.peak_bytes - plan.resident_bytes
        clear()


@pytest.mark.parametrize("path", WITH_FIT)
def test_case_is_exact_with_fit(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way, which also plans later batches of other shapes, with room and without."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    if path.stem in REFUSED or path.stem == "case08_nontensor_args":
        with pytest.raises((CaptureError, ReplayError)):
            run(path, "tight")
        return
    plain = run(path, "plain")
    assert judge().diff(plain, run(path, "fit"), True) == []
    made: list[ReplayModule] = []
    assert judge().diff(plain, run(path, "tight", made), True) == []
    (module,) = made
    assert module.peak_bytes <= module.plan.budget_bytes
    assert module.plan.schedule.recomputes() > 0 or path.stem in NOTHING_TO_RECOMPUTE
