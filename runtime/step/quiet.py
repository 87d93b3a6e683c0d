"""Generated code runs below autograd and autocast."""

from __future__ import annotations

from typing import Any

import torch

_private: Any = torch._C


class quiet:
    """No autograd, no autocast: generated code calls kernels and nothing above them."""

    __slots__ = ("_autocast", "_autograd", "_grad")

    def __enter__(self) -> None:
        # Each of these takes a good part of a microsecond, and the first and the last are rare.
        self._grad = torch.is_grad_enabled()
        if self._grad:
            _private._set_grad_enabled(False)
        self._autograd = _private._AutoDispatchBelowADInplaceOrView()
        self._autograd.__enter__()
        self._autocast = None
        if _private._is_any_autocast_enabled():
            self._autocast = _private._DisableAutocast()
            self._autocast.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._autocast is not None:
            self._autocast.__exit__(None, None, None)
        self._autograd.__exit__(None, None, None)
        if self._grad:
            _private._set_grad_enabled(True)
