"""Keeps operators as eager PyTorch runs them, where its tracer would put something else.

Part of `export`: this, too, is PyTorch's inside.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_WHOLE = (
    "dropout",
    "hardshrink",
    "multi_margin",
    "multilabel_",
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

    autograd = DispatchKey.Autograd
    saved: list[tuple[Any, Any, Any]] = []
    draw: Any = torch.ops.aten.bernoulli_.float
    try:
        for name in dir(torch.ops.aten):
            if not name.startswith(_WHOLE):
                continue
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                op = getattr(packet, overload)
                for key in (autograd, DispatchKey.CompositeImplicitAutograd):
                    if key in op.py_kernels:
                        saved.append((op, key, op.py_kernels.pop(key)))
                        op._dispatch_cache.clear()
        draw.py_kernels[autograd] = _draw_in_place
        draw._dispatch_cache.clear()
        yield
    finally:
        draw.py_kernels.pop(autograd, None)
        draw._dispatch_cache.clear()
        for op, key, kernel in saved:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def _draw_in_place(
    tensor: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`bernoulli_` as a draw into memory laid out like the tensor's, and a copy."""
    with torch.no_grad():
        drawn = BERNOULLI(tensor, p)
    return tensor.copy_(drawn)
