"""The casts that autocast keeps: a weight that is used twice is cast once.

The gradients of its uses are then added up in the narrow type, and the sum is cast back. PyTorch
keeps the casts of leaves only, and in a trace weights are none, so this does it in its place, by
the same rule (`cached_cast` in `aten/src/ATen/autocast_mode.cpp`).
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# operators whose arguments autocast makes narrow, on one kind of device or another
_NARROW = (
    "_convolution", "_native_multi_head_attention", "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "addbmm", "addmm", "addmv", "addr", "baddbmm",
    "bmm", "chain_matmul", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "convolution", "einsum", "gru_cell",
    "linalg_multi_dot", "linalg_vecdot", "linear", "lstm_cell", "matmul", "mkldnn_rnn_layer", "mm",
    "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell", "scaled_dot_product_attention",
)  # fmt: skip
_KINDS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


class Casts:
    """Casts of `leaves` that were made since the outermost autocast began.

    Parameters
    ----------
    leaves
        Stand for leaves of the user's.
    others
        Stand for tensors of the user's that require a gradient and are no leaves.

    Attributes
    ----------
    repeated
        Ids of `leaves` and `others` of which a cast was asked for again: what is computed depends
        on whether they are leaves.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], others: Sequence[torch.Tensor] = ()) -> None:
        self._leaves = {id(leaf): leaf for leaf in leaves}
        self._others = {id(other): other for other in others}
        self._made: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.repeated: set[int] = set()

    def cast(self, tensor: Any) -> Any:
        """The narrow form of a leaf; anything else as it is."""
        kept = id(tensor) in self._leaves
        if not kept and id(tensor) not in self._others:
            return tensor
        kind = tensor.device.type
        if kind not in _KINDS or not torch.is_autocast_enabled(kind):
            return tensor
        if not torch.is_autocast_cache_enabled():
            return tensor
        dtype = torch.get_autocast_dtype(kind)
        key = id(tensor), dtype
        if key in self._made:
            self.repeated.add(id(tensor))
        else:
            self._made[key] = tensor.to(dtype) if kept else tensor
        return self._made[key]

    def clear(self) -> None:
        """Forget all: the outermost autocast ended."""
        self._made.clear()


_current = Casts(())


def cast(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as autocast hands it to an operator for which it makes tensors narrow."""
    kind = tensor.device.type
    wide = tensor.is_floating_point() and tensor.dtype is not torch.double
    if not wide or not torch.is_autocast_enabled(kind):
        return tensor
    kept: torch.Tensor = _current.cast(tensor)
    return kept.to(torch.get_autocast_dtype(kind))


def casts_are_kept(tensor: torch.Tensor) -> bool:
    """Whether autocast keeps the cast of a tensor that requires a gradient."""
    return tensor.is_leaf and not tensor._is_view()


@contextlib.contextmanager
def cast_once(
    leaves: Sequence[torch.Tensor], others: Sequence[torch.Tensor] = ()
) -> Iterator[Casts]:
    """Keep casts of the float32 tensors among `leaves`; see `Casts`."""
    global _current
    before = _current
    clear = torch.clear_autocast_cache
    wide = [[t for t in group if t.dtype is torch.float32] for group in (leaves, others)]
    casts = _current = Casts(*wide)

    def clear_both() -> None:
        casts.clear()
        clear()

    try:
        torch.clear_autocast_cache = clear_both
        yield casts
    finally:
        torch.clear_autocast_cache = clear
        _current = before


@contextlib.contextmanager
def casts_kept() -> Iterator[None]:
    """Ask for kept casts before every operator that wants narrow arguments, in a trace."""
    found = list(_operators())
    try:
        for op, key in found:
            op.py_kernels[key] = functools.partial(_kernel, op, key)
            op._dispatch_cache.clear()
        yield
    finally:
        for op, key in found:
            del op.py_kernels[key]
            op._dispatch_cache.clear()


def _operators() -> Iterator[tuple[Any, Any]]:
    """Overloads that make their arguments narrow, with the dispatch key under which they do."""
    for name in _NARROW:
        packet = getattr(torch.ops.aten, name, None)
        for overload in () if packet is None else packet.overloads():
            op = getattr(packet, overload)
            for word in _KINDS.values():
                key = getattr(torch._C.DispatchKey, word)
                if _has_kernel(op.name(), word) and key not in op.py_kernels:
                    yield op, key


def _has_kernel(name: str, key: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
    except RuntimeError:  # an overload of TorchScript's only
        return False


def _kernel(op: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = pytree.tree_map(_current.cast, (args, kwargs))
    return op._op_dk(key, *args, **kwargs)
