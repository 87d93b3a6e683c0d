"""Gated recurrent units as eager PyTorch runs them on a CPU, where its tracer rounds otherwise.

Eager PyTorch adds the parts of a gate in place, in a slice of the rows of a matrix product, and
takes the sigmoid of that slice (`GRUCell` in `aten/src/ATen/native/RNN.cpp`, which this follows).
A trace has no writes in place: the sum is a dense tensor there, and the vectorised sigmoid rounds
what is left over at the end of a row otherwise than what is in the middle of a dense tensor. Here
the whole rows are added, and the gates are slices of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

_aten: Any = torch.ops.aten


class _Gates(torch.autograd.Function):
    """Both gates, and what belongs to neither of them, from the rows of two matrix products.

    Rows of `hidden` and `inputs` [rows, 3 width] give the reset gate, the update gate, and the
    last thirds of both, [rows, width] each.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, inputs: torch.Tensor) -> Any:
        reset, update, _ = (hidden + inputs).chunk(3, 1)
        gates = reset.sigmoid(), update.sigmoid()
        ctx.save_for_backward(*gates)
        return (*gates, hidden.chunk(3, 1)[2], inputs.chunk(3, 1)[2])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        pairs = zip(gradients, ctx.saved_tensors, strict=False)
        sums = [_aten.sigmoid_backward(gradient, gate) for gradient, gate in pairs]
        needed = zip(ctx.needs_input_grad, gradients[2:], strict=True)
        return tuple(torch.cat([*sums, rest], 1) if need else None for need, rest in needed)


def _cell(
    inputs: torch.Tensor, hidden: torch.Tensor, w_hh: torch.Tensor, b_hh: torch.Tensor | None
) -> torch.Tensor:
    """The next hidden state [rows, width] from products of the input [rows, 3 width]."""
    made: Any = _Gates.apply(F.linear(hidden, w_hh, b_hh), inputs)  # type: ignore[no-untyped-call]
    reset, update, from_hidden, from_input = made
    new = (from_input + from_hidden * reset).tanh()
    out: torch.Tensor = (hidden - new) * update + new
    return out


def gru_cell(
    x: torch.Tensor,
    hidden: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """`torch.gru_cell` on a CPU."""
    return _cell(F.linear(x, w_ih, b_ih), hidden, w_hh, b_hh)


def gru(
    x: torch.Tensor,
    states: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.gru` on a CPU, of sequences of one length."""
    x = x.transpose(0, 1) if batch_first else x
    hidden = states.unbind(0)
    directions, count = 2 if bidirectional else 1, 4 if biases else 2
    last = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            w_ih, w_hh = weights[index * count : index * count + 2]
            b_ih, b_hh = weights[index * count + 2 : index * count + 4] if biases else (None, None)
            steps, state = list(F.linear(x, w_ih, b_ih).unbind(0)), hidden[index]
            made = []
            for inputs in reversed(steps) if direction else steps:
                state = _cell(inputs, state, w_hh, b_hh)
                made.append(state)
            last.append(state)
            outputs.append(torch.stack(made[::-1] if direction else made))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout != 0 and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(last)
