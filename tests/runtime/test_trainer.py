"""Hugging Face's `Trainer` trains a replayed model, and cannot tell the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.runtime.module import ReplayModule
from lowtide.runtime.trainer import fit_trainer
from lowtide.solver.errors import InputError, ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
]

VOCABULARY, LENGTH = 61, 8


@pytest.fixture(autouse=True, scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests of the same step share a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path_factory.mktemp("plans")))
        yield


def _model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _rows(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def _trainer(folder: Path, rows: int = 16, kind: Any = None, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=2, report_to=[], use_cpu=True, logging_steps=1,
        disable_tqdm=True, seed=3, **{"save_strategy": "no", "max_steps": 4, **options},
    )  # fmt: skip
    return (kind or transformers.Trainer)(
        model=_model(), args=arguments, train_dataset=_rows(rows), eval_dataset=_rows(3)
    )


def _replayed(folder: Path, **options: Any) -> Any:
    trainer = _trainer(folder, **options)
    module = fit_trainer(trainer, memory_budget="70%", times="roofline", time_limit=4)
    assert trainer.model is module
    assert module.plan.schedule.recomputes() > 0
    return trainer


def _history(trainer: Any) -> list[Any]:
    """Losses, gradient norms and learning rates of every step, and of evaluations."""
    names = ("loss", "grad_norm", "learning_rate", "eval_loss", "step")
    return [{n: entry.get(n) for n in names} for entry in trainer.state.log_history]


def _same(plain: Any, replayed: Any) -> None:
    assert _history(replayed) == _history(plain)
    mine, own = replayed.model.state_dict(), plain.model.state_dict()
    assert list(mine) == list(own)
    assert all(torch.equal(mine[name], own[name]) for name in own)
    start = _model().state_dict()
    assert not all(torch.equal(mine[name], start[name]) for name in start)


Trainer: Any = transformers.Trainer


class _OwnLoss(Trainer):  # type: ignore[misc]
    """A trainer that calls its model in its own way."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        """Cross entropy on the logits, labels withheld from the model."""
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"])
        loss = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())
        return (loss, outputs) if return_outputs else loss


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"gradient_accumulation_steps": 2, "max_grad_norm": 0.5}, id="accumulation"),
        pytest.param(
            {"bf16": True, "eval_strategy": "steps", "eval_steps": 2}, id="bf16", marks=_SLOW
        ),
        pytest.param({"label_smoothing_factor": 0.1}, id="label smoothing", marks=_SLOW),
        pytest.param({"rows": 3, "max_steps": 3}, id="smaller last batch", marks=_SLOW),
        pytest.param({"kind": _OwnLoss}, id="own loss", marks=_SLOW),
    ],
)
def test_training_is_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    """Losses, gradient norms, evaluations and parameters of four steps equal those without."""
    plain = _trainer(tmp_path / "plain", **options)
    plain.train()
    replayed = _replayed(tmp_path / "replayed", **options)
    replayed.train()
    _same(plain, replayed)


def test_the_model_is_recognised(tmp_path: Path) -> None:
    """Labels, loss keywords, class and methods are found as in the original."""
    plain, replayed = _trainer(tmp_path), _replayed(tmp_path)
    again = transformers.Trainer(model=replayed.model, args=replayed.args)
    for name in ("label_names", "model_accepts_loss_kwargs", "can_return_loss"):
        assert getattr(again, name) == getattr(plain, name)
    assert again.label_names == ["labels"]
    assert isinstance(again.model, transformers.PreTrainedModel)
    assert again.accelerator.unwrap_model(again.model) is again.model
    assert again.model.config is replayed.model.captured.model.config


def test_checkpoints(tmp_path: Path) -> None:
    """What is saved loads as the original, and training resumed by a plan ends where it would."""
    whole = _replayed(tmp_path / "whole", save_strategy="steps", save_steps=2)
    whole.train()
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "whole" / "checkpoint-4")
    state = whole.model.state_dict()
    assert list(loaded.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    whole.model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "config.json").exists()
    assert not isinstance(loaded, ReplayModule)
    resumed = _replayed(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    found = resumed.model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_random_state_is_left_alone(tmp_path: Path) -> None:
    """Looking at the first batch, capturing and solving draw nothing."""
    trainer = _trainer(tmp_path)
    before = torch.get_rng_state()
    fit_trainer(trainer, memory_budget="100%", times="roofline", time_limit=4)
    assert torch.equal(before, torch.get_rng_state())
    assert not trainer.accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_checkpointing": True}, "gradient_checkpointing"),
        ({"torch_compile": True}, "torch_compile"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Settings that exclude a plan, by name."""
    with pytest.raises(InputError, match=message):
        fit_trainer(_trainer(tmp_path, **options), memory_budget="70%")


def test_a_trainer_that_cannot_start_is_refused(tmp_path: Path) -> None:
    """One that trained already, one that would make another model, one without a batch."""
    trainer = _trainer(tmp_path, bf16=True)
    trainer.model._is_accelerate_prepared = True
    with pytest.raises(InputError, match="before train"):
        fit_trainer(trainer, memory_budget="70%")
    trainer = _trainer(tmp_path)
    trainer.model_init = _model
    with pytest.raises(InputError, match="model_init"):
        fit_trainer(trainer, memory_budget="70%")
    trainer = _trainer(tmp_path)
    trainer.get_batch_samples = lambda *_: ([], None)
    with pytest.raises(InputError, match="no training batch"):
        fit_trainer(trainer, memory_budget="70%")


def test_other_autocast_is_refused(tmp_path: Path) -> None:
    """A model captured in float32 does not train under the trainer's bfloat16 unnoticed."""
    trainer = _trainer(tmp_path)
    module = fit_trainer(
        trainer, memory_budget="100%", times="roofline", time_limit=4, on_new_shape="refuse"
    )
    trainer = _trainer(tmp_path, bf16=True)
    trainer.model = trainer.model_wrapped = module
    with pytest.raises(ReplayError, match="autocast on cpu is on"):
        trainer.train()
