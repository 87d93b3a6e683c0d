"""The examples of `experiments/integrations`: the line they show changes memory only."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch

import lowtide
from lowtide.runtime.module import ReplayModule
from lowtide.solver.errors import ReplayError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
NEEDS = {"plain_loop": "torch", "hugging_face": "accelerate", "lightning_module": "lightning"}


@pytest.fixture(autouse=True)
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of the tests do not go to the user's cache."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path / "plans"))


def _same(example: str, calls: int = 5, **more: Any) -> Any:
    """Train 5 steps plain and replayed, and compare; the replayed module."""
    pytest.importorskip(NEEDS[example])
    module = import_module(f"experiments.integrations.{example}")
    (losses, plain), (own, trained) = (module.train(budget, 5, **more) for budget in (None, "60%"))
    assert own == losses
    assert len(losses) == calls
    mine, others = trained.state_dict(), plain.state_dict()
    assert list(mine) == list(others)
    assert all(torch.equal(mine[name], others[name]) for name in others)
    replayed: Any = trained.model if example == "lightning_module" else trained
    assert isinstance(replayed, ReplayModule)
    assert replayed.plan.schedule.recomputes() > 0
    return trained


@pytest.mark.parametrize(
    "example",
    ["plain_loop", "lightning_module", pytest.param("hugging_face", marks=pytest.mark.slow)],
)
def test_example(example: str) -> None:
    """Losses of all steps and the parameters after them are equal to the bit."""
    _same(example)


@pytest.mark.slow
def test_lightning_accumulates_and_saves(tmp_path: Path) -> None:
    """Accumulated gradients, validation in between, and a checkpoint that the original loads."""
    trained = _same(
        "lightning_module", 10, accumulate_grad_batches=2, val_check_interval=2, precision="32-true"
    )
    trained.trainer.save_checkpoint(tmp_path / "last.ckpt")
    from experiments.integrations.lightning_module import LitReader

    loaded = LitReader.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    assert not isinstance(loaded.model, ReplayModule)
    state = trained.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())


def test_a_whole_lightning_module_is_not_trained_past_its_plan() -> None:
    """Lightning calls `training_step`, which a plan of `forward` knows nothing of: refused."""
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x).square().mean()

        def training_step(self, x: torch.Tensor, _: int) -> Any:
            return self(x)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x = torch.ones(2, 4)
    module: Any = lowtide.fit(Lit(), x, memory_budget="100%", times="roofline", time_limit=30)
    module(x).backward()
    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(ReplayError, match="training_step is a method of the plain Lit"):
        trainer.fit(module, torch.utils.data.DataLoader([torch.ones(4)] * 2, batch_size=2))  # type: ignore[arg-type]
