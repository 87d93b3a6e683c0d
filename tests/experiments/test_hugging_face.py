"""Models of Hugging Face transformers train exactly with much recomputation, or are refused."""

from __future__ import annotations

import pytest
import torch

from experiments.hugging_face.models import MODELS
from experiments.hugging_face.study import Row
from lowtide.frontends.torch.capture import capture
from lowtide.runtime.replay import replay
from lowtide.runtime.verify import verify
from lowtide.solver.errors import CaptureError

from ..plans import plan_of, recomputing

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own
_FAST = ("llama", "opt", "vit", "electra-pretraining")
_NAMES = [n if n in _FAST else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]


@pytest.mark.parametrize("name", _NAMES)
def test_model_is_exact_or_refused(name: str) -> None:
    """Two AdamW steps with the forward run again in backward, or the reason that is expected."""
    torch.set_num_threads(1)
    entry = MODELS[name]
    model = entry.make()
    if entry.refusal:
        with pytest.raises(CaptureError, match=entry.refusal):
            capture(model, entry.batch(0), times="none")
        return
    captured = capture(model, entry.batch(0), times="none")
    schedule = recomputing(captured.graph, len(captured.graph.ops))
    assert schedule.recomputes() > 20
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(model, module, [entry.batch(step) for step in range(2)], measure=False)
    assert found.ok, found.first_difference


def test_every_family_is_there() -> None:
    """At least twenty models, of all the kinds that the table promises."""
    families = {entry.family for entry in MODELS.values() if not entry.refusal}
    assert len(MODELS) >= 25
    assert families >= {
        "encoder", "decoder", "encoder-decoder", "vision", "audio", "mixture of experts"
    }  # fmt: skip


def test_row_compares_peaks() -> None:
    """The saving is of the plain peak; a refused model has no numbers."""
    row = Row("m", "f", 10, True, "", 3, 200, 150, 150, "50%")
    assert row.saved_percent == 25
    assert row.as_dict()["predicted_is_measured"]
    assert "saved_percent" not in Row("m", "f", reason="why").as_dict()
