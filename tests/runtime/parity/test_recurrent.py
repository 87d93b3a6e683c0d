"""Recurrent layers replay to the bits of eager PyTorch, its fused LSTM kernel included."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.profile import profile
from lowtide.runtime.parity.verify import verify
from lowtide.runtime.replay import replay

from ...plans import recomputing
from ..schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("one_thread")


class Recurrent(nn.Module):
    """A recurrent layer and a linear one."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All states, and the last ones."""
        states, last = self.layer(x)
        out: torch.Tensor = self.head(states).sum()
        for state in (last,) if isinstance(last, torch.Tensor) else last:
            out = out + state.square().sum()
        return out


_BOTH: dict[str, Any] = {"num_layers": 2, "dropout": 0.3, "bidirectional": True}
LAYERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "lstm": (lambda: nn.LSTM(3, 4, **_BOTH), 8),
    "lstm_batch_first": (lambda: nn.LSTM(3, 4, batch_first=True), 4),
    "lstm_without_bias": (lambda: nn.LSTM(3, 4, bias=False), 4),
    "lstm_in_evaluation": (lambda: nn.LSTM(3, 4).eval(), 4),
    "lstm_projected": (lambda: nn.LSTM(3, 4, proj_size=2), 2),
    "lstm_double": (lambda: nn.LSTM(3, 4).double(), 4),
    # wide enough for vectorised kernels, with some columns left over
    "gru": (lambda: nn.GRU(3, 10, **_BOTH), 20),
    "gru_without_bias": (lambda: nn.GRU(3, 10, bias=False, batch_first=True), 10),
    "rnn": (lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True), 4),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow)
        if n in ("lstm_projected", "lstm_double", "rnn")
        else n
        for n in LAYERS
    ],
)
def test_recurrent_layers_are_exact(name: str) -> None:
    """Two steps with as much recomputation as there can be; dropout between layers is drawn."""
    torch.manual_seed(0)
    make, width = LAYERS[name]
    layer = make()
    dtype = next(layer.parameters()).dtype
    model = Recurrent(layer, width).to(dtype)
    batches = [torch.randn(4, 9, 3, dtype=dtype) for _ in range(2)]
    captured = capture(model, batches[0], times="none")
    drops = any(op.random for op in captured.program.ops)
    assert drops == (getattr(layer, "dropout", 0.0) > 0)
    again = 0
    for schedule in (
        recomputing(captured.graph, len(captured.graph.ops)),
        random_schedule(captured.graph, random.Random(0), drop=0.05),
    ):
        again += schedule.recomputes()
        module = replay(captured, plan_of(captured.graph, schedule))
        found = verify(model, module, batches, measure=False)
        assert found.ok, found.first_difference
    assert again > 3


@pytest.mark.parametrize("make", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
@pytest.mark.parametrize("autocast", [False, True])
def test_cells_are_exact(make: Callable[[int, int], nn.Module], autocast: bool) -> None:
    """One step of each kind, also where autocast makes its products narrow."""
    torch.manual_seed(0)
    model = make(5, 10)
    batch = torch.randn(9, 5)

    def loss(out: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        out = out if isinstance(out, torch.Tensor) else out[0]
        return out.float().square().mean()

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        captured = capture(model, batch, loss, times="none")
        schedule = recomputing(captured.graph, len(captured.graph.ops))
        module = replay(captured, plan_of(captured.graph, schedule))
        found = verify(model, module, [batch], optimizer=None, measure=False)
    assert found.ok, found.first_difference
    assert schedule.recomputes() > 3


def test_fused_lstm_is_one_op_of_predicted_bytes() -> None:
    """A layer is one op, however long the sequence; its peak is the predicted one."""
    torch.manual_seed(0)
    model = Recurrent(nn.LSTM(3, 20, num_layers=2), 20)
    batch = torch.randn(9, 3, 3)
    captured = capture(model, batch, times="none")
    kinds = [op.kind for op in captured.graph.ops]
    assert kinds.count("lowtide.lstm_layer.default") == 2
    assert kinds.count("lowtide.lstm_layer_backward.default") == 2
    sizes = [t.size_bytes for t in captured.graph.tensors]
    captured = profile(captured, budget_s=0.01, cache=False)
    assert [t.size_bytes for t in captured.graph.tensors] == sizes
    schedule = random_schedule(captured.graph, random.Random(0), drop=0.5)
    module = replay(captured, plan_of(captured.graph, schedule))
    found = verify(model, module, [batch], repeats=1)
    assert found.ok, found.first_difference
    assert found.replay_peak_bytes == found.predicted_peak_bytes
