"""Keeps operators as eager PyTorch runs them, where its tracer would put something else.

Part of `export`: this, too, is PyTorch's inside.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from .gated import gru, gru_cell
from .recurrent import fused, lstm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WHOLE = (
    "dropout",
    "gru",
    "hardshrink",
    "lstm",
    "multi_margin",
    "multilabel_",
    "rnn_",
    "softshrink",
    "upsample_",
    "_upsample_",
)
_library: Any = torch.library
_LIBRARY = _library.Library("lowtide", "FRAGMENT")
_LIBRARY.define(
    "bernoulli(Tensor like, float p) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
_LIBRARY.impl("bernoulli", lambda like, p: torch.empty_like(like), "Meta")
# A draw in place, as a trace shows it. It has no kernel: `masks` puts a function in its place.
BERNOULLI: Any = torch.ops.lowtide.bernoulli.default


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """Take away the tracer's replacements, while a step is traced.

    Most are Python code that rounds otherwise; that of `multilabel_margin_loss` even gives another
    value, and that of dropout is the kernel of CUDA also on a CPU, where eager PyTorch draws a mask
    in place. A draw in place would be traced as one into new contiguous memory, and so draw in
    another order.
    """
    from torch._C import DispatchKey
    from torch._decomp import decompositions  # noqa: F401  (registers what is set aside here)

    autograd, composite = DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd
    saved: list[tuple[Any, Any, Any]] = []
    draw: Any = torch.ops.aten.bernoulli_.float
    layers = {
        torch.ops.aten.lstm.input: _lstm,
        torch.ops.aten.gru.input: _on_cpu(torch.ops.aten.gru.input, gru),
        torch.ops.aten.gru_cell.default: _on_cpu(torch.ops.aten.gru_cell.default, gru_cell),
    }
    both = [(op, key, kernel) for op, kernel in layers.items() for key in (autograd, composite)]
    ours: list[tuple[Any, Any, Any]] = [(draw, autograd, _draw_in_place), *both]
    try:
        for name in dir(torch.ops.aten):
            if not name.startswith(_WHOLE):
                continue
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                op = getattr(packet, overload)
                for key in (autograd, composite):
                    if key in op.py_kernels:
                        saved.append((op, key, op.py_kernels.pop(key)))
                        op._dispatch_cache.clear()
        for op, key, kernel in ours:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()
        yield
    finally:
        for op, key, _ in ours:
            op.py_kernels.pop(key, None)
            op._dispatch_cache.clear()
        for op, key, kernel in saved:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


@contextlib.contextmanager
def checks_kept() -> Iterator[None]:
    """Keep calls that return nothing, such as the check whether a matrix could be inverted.

    Nobody uses their results: before PyTorch 2.13 tracers take most of them for dead code.
    """
    node: Any = torch.fx.Node
    known = node.is_impure

    def is_impure(self: Any, *args: Any, **kwargs: Any) -> bool:
        schema = getattr(self.target, "_schema", None)
        if self.op == "call_function" and schema is not None and not schema.returns:
            return True
        return bool(known(self, *args, **kwargs))

    node.is_impure = is_impure
    try:
        yield
    finally:
        node.is_impure = known


def _lstm(x: torch.Tensor, states: Any, weights: Any, *flags: Any) -> Any:
    """`torch.lstm`: in oneDNN where eager PyTorch does that, else as PyTorch composes it."""
    from torch._C import DispatchKey

    if fused(x, states, weights):
        return lstm(x, states, weights, *flags)
    composite = DispatchKey.CompositeImplicitAutograd
    return torch.ops.aten.lstm.input._op_dk(composite, x, states, weights, *flags)


def _on_cpu(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel for tensors on a CPU, elsewhere what PyTorch composes."""
    from torch._C import DispatchKey

    def either(x: torch.Tensor, *rest: Any, **more: Any) -> Any:
        if x.device.type == "cpu":
            return kernel(x, *rest, **more)
        return op._op_dk(DispatchKey.CompositeImplicitAutograd, x, *rest, **more)

    return either


def _draw_in_place(
    tensor: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`bernoulli_` as a draw into memory laid out like the tensor's, and a copy."""
    with torch.no_grad():
        drawn = BERNOULLI(tensor, p)
    return tensor.copy_(drawn)
