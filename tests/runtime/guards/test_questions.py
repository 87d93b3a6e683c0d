"""Branches on integers of the batch: followed as the plain step does, and asked again."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError

from ...frontends.models import Lambda, rows
from ...plans import recomputing
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")
FULL = torch.ones(3, dtype=torch.long)
PADDED = torch.tensor([1, 1, 0])


def skips_mask(self: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Masks only where something is masked, as attention does."""
    h = self.lin(x)
    keep = mask.to(torch.bool)
    if keep.sum() == keep.numel():
        return h.square().mean()
    return (h @ self.weight).masked_fill(~keep[:, None], 0.0).sum()


def contains(self: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Looks for a token."""
    return self.lin(x).sum() * (2.0 if 0 in mask[-1:] else 3.0)


def checks(self: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Checks its input, and takes a number of rows from it."""
    if mask.max() > 1:
        raise ValueError("not a mask")
    return self.lin(x)[: int(mask.sum())].sum()


BODIES: tuple[Callable[..., Any], ...] = (skips_mask, contains, checks)


def captured_of(body: Callable[..., Any], mask: torch.Tensor) -> Captured:
    """The step for one mask."""
    torch.manual_seed(0)
    return capture(Lambda(body), (rows(), mask), times="none")


def replayed(captured: Captured) -> ReplayModule:
    """With much recomputation."""
    graph = captured.graph
    return replay(captured, plan_of(graph, recomputing(graph, len(graph.ops))))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize(
    ("mask", "other"), [(FULL, PADDED), (PADDED, FULL)], ids=["full", "padded"]
)
def test_the_branch_of_the_plain_step_is_taken(
    body: Callable[..., Any], mask: torch.Tensor, other: torch.Tensor
) -> None:
    """Exact for batches with the same answers; one with another is refused, with the line."""
    captured = captured_of(body, mask)
    module = replayed(captured)
    batches = [(rows() * k, mask.clone()) for k in (1, 2)]
    found = verify(captured.model, module, batches, measure=False)
    assert found.ok, found.first_difference
    with pytest.raises(ReplayError, match=r"test_questions\.py:\d+ .*asks about the batch here"):
        module(rows(), other)
    module(rows(), mask)


def test_all_that_leads_to_the_same_answer_is_replayed() -> None:
    """Only the answer counts, not the batch."""
    module = replayed(captured_of(skips_mask, PADDED))
    module(rows(), torch.tensor([0, 1, 0]))


def test_questions_survive_pickling() -> None:
    """A captured step that is stored still asks."""
    captured = captured_of(skips_mask, PADDED)
    program = pickle.loads(pickle.dumps(captured.program.questions))
    assert [q.answer for q in program] == [q.answer for q in captured.program.questions]
    assert program[0].ask([rows(), FULL], {}) is True


def test_questions_about_changed_or_computed_tensors_stay_open() -> None:
    """What a step has written to, and what it computes from floats, is not followed."""

    def writes(self: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        mask.mul_(2)
        return self.lin(x).sum() * (2 if mask.sum() > 3 else 1)

    def computes(self: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        h = self.lin(x)
        return h.sum() * (2 if h.argmax() > mask.sum() else 1)

    for body in (writes, computes):
        with pytest.raises(CaptureError, match="needs the value of a tensor"):
            captured_of(body, FULL)


def test_fit_plans_the_other_branch(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module made by `fit` has a plan for each answer, made when it first comes."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model = Lambda(skips_mask)
    module = fit(model, (rows(), FULL), memory_budget="1MiB", times="roofline", time_limit=2)
    for mask in (FULL, PADDED, FULL):
        losses = [net(rows(), mask) for net in (model, module)]
        assert torch.equal(*losses)
        plain, replayed = (torch.autograd.grad(loss, model.lin.weight) for loss in losses)
        assert torch.equal(plain[0], replayed[0])
