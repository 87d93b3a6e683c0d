"""Batch norm with `momentum=None`: a cumulative average, whose factor is the value of a counter.

Eager PyTorch reads `num_batches_tracked` on the host in each step. Here one op reads it when it
runs, and so takes the value of the step that is replayed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterator

_library: Any = torch.library
_LIBRARY = _library.Library("lowtide", "FRAGMENT")
_LIBRARY.define(
    "cumulative_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, "
    "Tensor running_var, Tensor count, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_ops: Any = torch.ops


def _normalise(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    count: torch.Tensor,
    eps: float,
) -> Any:
    factor = 1.0 / float(count) if count.device.type != "meta" else 0.0
    norm = _ops.aten._native_batch_norm_legit_functional
    return norm(x, weight, bias, mean, var, True, factor, eps)


_LIBRARY.impl("cumulative_batch_norm", _normalise, "CPU")
_LIBRARY.impl("cumulative_batch_norm", _normalise, "Meta")


class _Norm(torch.autograd.Function):
    """Normalisation and new statistics, with the backward of every batch norm."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        out, *saved, mean, var = _ops.lowtide.cumulative_batch_norm(*arguments)
        ctx.save_for_backward(*arguments[:2], *saved)
        ctx.eps = arguments[-1]
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> Any:
        if grad is None:
            return (None,) * 7
        x, weight, mean, inverse = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        backward = _ops.aten.native_batch_norm_backward
        made = backward(grad, x, weight, None, None, mean, inverse, True, ctx.eps, wanted)
        return (*made, None, None, None, None)


@contextlib.contextmanager
def counters_unread() -> Iterator[None]:
    """Let batch norms with a cumulative average be traced without a look at their counter."""
    norm: Any = _BatchNorm
    plain = norm.forward

    def forward(self: Any, x: torch.Tensor) -> Any:
        counts = self.momentum is None and self.training and self.track_running_stats
        if not counts or self.num_batches_tracked is None or x.device.type != "cpu":
            return plain(self, x)
        self._check_input_dim(x)
        self.num_batches_tracked.add_(1)
        tensors = (x, self.weight, self.bias, self.running_mean, self.running_var)
        made: Any = _Norm.apply(*tensors, self.num_batches_tracked, self.eps)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.running_mean.copy_(made[1])
            self.running_var.copy_(made[2])
        return made[0]

    try:
        norm.forward = forward
        yield
    finally:
        norm.forward = plain
