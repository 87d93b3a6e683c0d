"""Recurrent layers as eager PyTorch runs them on a CPU: the fused kernel of an LSTM as one op.

Eager PyTorch runs an LSTM in oneDNN, a layer and direction at a time (`mkldnn_rnn` in
`aten/src/ATen/native/mkldnn/RNN.cpp`, which this follows). Its tracer unrolls it into time steps,
which round otherwise. The operator itself cannot be traced: it decides by the gradient mode
whether it keeps what backward needs, and a program runs without one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from .autocasts import cast

if TYPE_CHECKING:
    from collections.abc import Sequence

_LSTM = 2  # its mode in oneDNN
_library: Any = torch.library
_LIBRARY = _library.Library("lowtide", "FRAGMENT")
_TENSORS = "Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, Tensor c"
_FLAGS = "bool reverse, bool biases, bool train"
_LIBRARY.define(f"lstm_layer({_TENSORS}, {_FLAGS}) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"lstm_layer_backward({_TENSORS}, Tensor out, Tensor h_out, Tensor c_out, Tensor? grad_out, "
    f"Tensor? grad_h, Tensor? grad_c, Tensor workspace, {_FLAGS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_ops: Any = torch.ops.lowtide
_aten: Any = torch.ops.aten
_onednn: Any = torch.backends.mkldnn


def _layer(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
    biases: bool,
    train: bool,
) -> Any:
    tensors = (x, w_ih, w_hh, b_ih, b_hh, h, c)
    with torch.enable_grad():  # or it keeps nothing for backward
        return _aten.mkldnn_rnn_layer(
            *tensors, reverse, [], _LSTM, h.shape[-1], 1, biases, False, False, train
        )


def _layer_backward(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    out: torch.Tensor,
    h_out: torch.Tensor,
    c_out: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    grad_c: torch.Tensor | None,
    workspace: torch.Tensor,
    reverse: bool,
    biases: bool,
    train: bool,
) -> Any:
    tensors = (x, w_ih, w_hh, b_ih, b_hh, h, c, out, h_out, c_out, grad_out, grad_h, grad_c)
    return _aten.mkldnn_rnn_layer_backward(
        *tensors, reverse, _LSTM, h.shape[-1], 1, biases, train, False, [], False, workspace
    )


def _layer_like(x: torch.Tensor, w_ih: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    h, c = rest[3:5]
    shape = (x.shape[0], x.shape[1], h.shape[-1])
    size = workspace_bytes(*shape, x.shape[2], x.dtype, rest[6])
    workspace = x.new_empty(size, dtype=torch.uint8)
    return x.new_empty(shape), torch.empty_like(h), torch.empty_like(c), workspace


def _backward_like(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    w_ih, w_hh, _, _, h, c = rest[:6]
    shapes = (x.shape, w_ih.shape, w_hh.shape, (4 * h.shape[-1],), (4 * h.shape[-1],))
    return tuple(x.new_empty(s, dtype=torch.float) for s in (*shapes, h.shape, c.shape))


@functools.cache
def workspace_bytes(
    steps: int, rows: int, width: int, features: int, dtype: torch.dtype, biases: bool
) -> int:
    """Bytes that oneDNN keeps for the backward of a layer; only the kernel itself knows them."""
    from .export import real_values

    meta = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(False)  # a fake tensor's kernel is running
    try:
        with real_values():
            return _measured_workspace(steps, rows, width, features, dtype, biases)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(meta)


def _measured_workspace(
    steps: int, rows: int, width: int, features: int, dtype: torch.dtype, biases: bool
) -> int:
    x = torch.zeros(steps, rows, features, dtype=dtype)
    w_ih, w_hh = (torch.zeros(4 * width, n, dtype=dtype) for n in (features, width))
    bias, state = torch.zeros(4 * width, dtype=dtype), torch.zeros(rows, width, dtype=dtype)
    made = _layer(x, w_ih, w_hh, bias, bias, state, state, False, biases, True)
    return int(made[3].numel())


_LIBRARY.impl("lstm_layer", _layer, "CPU")
_LIBRARY.impl("lstm_layer_backward", _layer_backward, "CPU")
_LIBRARY.impl("lstm_layer", _layer_like, "Meta")
_LIBRARY.impl("lstm_layer_backward", _backward_like, "Meta")


class _Layer(torch.autograd.Function):
    """One layer in one direction, differentiated by oneDNN."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        made = _ops.lstm_layer(*arguments)
        ctx.flags = arguments[7:]
        ctx.save_for_backward(*arguments[:7], *made)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(made[3])
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tensors = ctx.saved_tensors
        if gradients[0] is None and gradients[1] is None and gradients[2] is None:
            return (None,) * 10
        made = _ops.lstm_layer_backward(*tensors[:10], *gradients[:3], tensors[10], *ctx.flags)
        return (*made, None, None, None)


def fused(x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> bool:
    """Whether eager PyTorch runs an LSTM on these tensors in oneDNN."""
    if not _onednn.enabled or not _onednn.is_available():
        return False
    if any(t.device.type != "cpu" for t in (x, *states, *weights)):
        return False
    kinds = (torch.float, torch.bfloat16)
    return x.dtype in kinds and x.numel() > 0 and states[0].size(2) == states[1].size(2)


def lstm(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.lstm` on tensors for which `fused` holds."""
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    h, c = (state.contiguous() for state in states)
    directions, count = 2 if bidirectional else 1, 4 if biases else 2
    last: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            own = list(weights[index * count : (index + 1) * count])
            if not biases:
                own += [x.new_zeros(own[0].shape), x.new_zeros(own[1].shape)]
            tensors = (cast(t) for t in (x, *own, h[index], c[index]))
            made: Any = _Layer.apply(*tensors, direction > 0, biases, train)  # type: ignore[no-untyped-call]
            outputs.append(made[0])
            last[0].append(made[1])
            last[1].append(made[2])
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout != 0 and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return (
        x.transpose(0, 1) if batch_first else x,
        torch.stack(last[0]),
        torch.stack(last[1]),
    )
