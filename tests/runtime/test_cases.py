"""Public trap models, from the folder LOWTIDE_CASES: replayed exactly, or refused by name.

Each runs plainly and by plans with much recomputation, over all its batches. Losses, gradients
(also whether they are None, their type and layout), buffers, inputs, hooks and the random state
must be equal in every bit.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError

from ..frontends.test_cases import FILES, FOLDER, load
from ..plans import recomputing
from .schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not FILES, reason="no folder of cases"),
    pytest.mark.filterwarnings("ignore"),
]
FAST = ("case01", "case03", "case12", "case34")
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
PATHS = [
    pytest.param(path, id=path.stem, marks=() if path.stem[:6] in FAST else pytest.mark.slow)
    for path in FILES
]


def judge() -> Any:
    """The folder's own comparison."""
    sys.path.insert(0, str(FOLDER))
    try:
        return load(FOLDER / "run_cases.py")
    finally:
        sys.path.remove(str(FOLDER))


def run(path: Path, how: str) -> dict[str, Any]:
    """All batches of a case: `plain`, by `fit`, or by a plan that recomputes `all` or `some`."""
    tools, case = judge(), load(path)
    example: Any = None
    losses: list[Any] = []

    def wrap(model: Any, _mode: str, loss_fn: Any) -> Any:
        if how == "plain":
            return lambda *args: loss_fn(model(*args))
        batch = case.batches()[0] if hasattr(case, "batches") else example
        if how == "fit":
            return fit(
                model, batch, memory_budget="100%", loss_fn=loss_fn, times="roofline", time_limit=9
            )
        captured = capture(model, batch, loss_fn, times="none")
        graph = captured.graph
        schedule = recomputing(graph, len(graph.ops))
        if how == "some" and len(graph.ops) < 1000:
            schedule = random_schedule(graph, random.Random(0), drop=0.5)
        return replay(captured, plan_of(graph, schedule))

    make = case.make

    def made() -> Any:
        nonlocal example
        model, example, loss = make()
        losses.append(loss)
        return model, example, lambda out: out

    case.make = made
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


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_case_is_exact_with_fit(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way, which also plans later batches of other shapes."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    if path.stem in REFUSED or path.stem == "case08_nontensor_args":
        with pytest.raises((CaptureError, ReplayError)):
            run(path, "fit")
        return
    assert judge().diff(run(path, "plain"), run(path, "fit"), True) == []
