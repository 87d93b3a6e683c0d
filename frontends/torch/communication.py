"""Refuses steps that communicate: a plan must not repeat a collective, nor move it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...solver.errors import CaptureError
from .processes import distributed
from .watch import describe, user_frame

if TYPE_CHECKING:
    from collections.abc import Callable

_COLLECTIVES = {
    "c10d",
    "_c10d_functional",
    "_c10d_functional_autograd",
    "_dtensor",
    "fsdp",
    "symm_mem",
}


def refuse_collective(target: Any, where: str) -> None:
    """Raise if an operator communicates.

    Raises
    ------
    CaptureError
        If it does, naming `where`.
    """
    if getattr(target, "namespace", "") in _COLLECTIVES:
        raise CaptureError(
            f"{where}: the step communicates ({target}), and a plan may neither repeat nor move "
            "that; do it outside the step, or wrap the replayed module in DDP or fully_shard"
        )


def no_collectives() -> contextlib.AbstractContextManager[Any]:
    """A mode in which collectives are refused where the user calls them."""
    if distributed() is None:
        return contextlib.nullcontext()
    mode: Any = _Refuse
    found: contextlib.AbstractContextManager[Any] = mode()
    return found


class _Refuse(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if isinstance(func, torch._ops.OpOverload) and func.namespace in _COLLECTIVES:
            refuse_collective(func, describe(user_frame(sys._getframe(1))))
        return func(*args, **(kwargs or {}))
