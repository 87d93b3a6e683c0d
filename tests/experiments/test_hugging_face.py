"""Models of Hugging Face transformers train exactly with much recomputation, or are refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
import torch

from experiments.hugging_face.__main__ import merged
from experiments.hugging_face.models import MODELS
from experiments.hugging_face.study import Row, planned, study, without_folders
from experiments.readme.families import hugging_face
from lowtide.frontends.chains import linear_chain
from lowtide.frontends.torch.capture import capture
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

from ..plans import plan_of, recomputing

if TYPE_CHECKING:
    from pathlib import Path

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


def test_table_of_families(tmp_path: Path) -> None:
    """Exact models, refused ones with the line of the library, and any that differ."""
    assert hugging_face(tmp_path) is None
    text = "/a/b-c/site-packages/transformers/x.py:7  a[b | c]: the step needs a value here (.)"
    said = without_folders(text)
    assert said.startswith("transformers/x.py:7")
    rows = [
        Row("one", "vision", 3, True),
        Row("two", "vision", 3, False, "step 0: loss"),
        Row("three", "vision", reason=said),
        Row("four", "audio", reason="it has hooks"),
    ]
    (tmp_path / "hugging_face").mkdir()
    file = tmp_path / "hugging_face" / "results.json"
    file.write_text(json.dumps([asdict(row) for row in rows]))
    table = hugging_face(tmp_path)
    assert table is not None
    assert table.splitlines()[2:] == [
        "| vision | one | two: step 0: loss; three: x.py:7 `a[b / c]`: the step needs a value |",
        "| audio |  | four: it has hooks |",
    ]


def test_a_row_is_exact_with_recomputation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that runs nothing again proves little: the model trains by another one as well."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("experiments.hugging_face.study.BUDGETS", ("100%",))
    torch.set_num_threads(1)
    row = study("vit", MODELS["vit"], 0.5, 0.5)
    assert (row.recomputed, row.budget) == (0, "100%")
    assert row.exact
    assert row.run_again > 20


def test_the_smallest_budget_where_no_other_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It saves what can be saved."""
    monkeypatch.setattr("experiments.hugging_face.study.BUDGETS", ("1%",))
    graph = linear_chain(8)
    budget, plan = planned(graph, 1.0, 2.0)
    assert plan.peak_bytes < simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    assert 1 < float(budget.rstrip("%")) < 100


def test_rows_of_other_runs_stay(tmp_path: Path) -> None:
    """In the order of the models, new ones in the place of old ones."""
    path = tmp_path / "results.json"
    old = [asdict(Row("gpt2", "decoder", 3)), asdict(Row("bert", "encoder", 3))]
    path.write_text(json.dumps(old))
    found = merged(path, [Row("gpt2", "decoder", 4, True, "", 1, 2, 1, 1, "50%")])
    assert [(row["model"], row["ops"]) for row in found] == [("bert", 3), ("gpt2", 4)]


def test_row_compares_peaks() -> None:
    """The saving is of the plain peak; a refused model has no numbers."""
    row = Row("m", "f", 10, True, "", 3, 200, 150, 150, "50%")
    assert row.saved_percent == 25
    assert row.as_dict()["predicted_is_measured"]
    assert "saved_percent" not in Row("m", "f", reason="why").as_dict()
