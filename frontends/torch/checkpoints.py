"""`torch.utils.checkpoint` in the user's code, which a capture runs plainly.

What to recompute is the plan's decision, and the checkpoint's own recomputation would restore the
real generator's state, which a trace cannot see.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from ...solver.errors import CaptureError
from .program import Call
from .rng import draws

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    State = dict[str, tuple[torch.Tensor, int]]

_REENTRANT = "CheckpointFunction"
# What runs around the function otherwise; from 2.14 on the second, whose settings have names.
_GENERATOR = "_checkpoint_without_reentrant_generator"
_NAMED = "_checkpoint_without_reentrant_generator_impl"

_TRACERS = (
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
    torch._C._TorchDispatchModeKey.PROXY,
)


@contextlib.contextmanager
def checkpoints_off(state: Callable[[], State]) -> Iterator[None]:
    """Make `torch.utils.checkpoint` run its function plainly.

    Parameters
    ----------
    state
        Names, identities and versions of the tensors that outlive the step. One that changes
        inside a checkpoint changes once more when eager PyTorch recomputes it; a plan would change
        it once, so the step is refused.
    """

    class Plain:
        @staticmethod
        def apply(function: Any, preserve: Any, *args: Any) -> Any:
            with unchanged(state), same_draws(preserve):
                return function(*args)

    def plain(
        _function: Any, preserve_rng_state: Any = True, *_args: Any, **_kwargs: Any
    ) -> Iterator[None]:
        with unchanged(state), same_draws(preserve_rng_state):
            yield

    def named(
        function: Any, _args: Any, _kwargs: Any, *, preserve_rng_state: Any = True, **_settings: Any
    ) -> Iterator[None]:
        return plain(function, preserve_rng_state)

    module = torch.utils.checkpoint
    instead = {_REENTRANT: Plain, _GENERATOR: plain, _NAMED: named}
    saved = {name: getattr(module, name) for name in instead if hasattr(module, name)}
    try:
        for name in saved:
            setattr(module, name, instead[name])
        yield
    finally:
        for name, value in saved.items():
            setattr(module, name, value)


@contextlib.contextmanager
def unchanged(state: Callable[[], State]) -> Iterator[None]:
    """Refuse a change of lasting tensors in a region that eager PyTorch runs twice."""
    if not torch.is_grad_enabled():  # nothing is recomputed
        yield
        return
    before = state()
    yield
    for name, (tensor, version) in state().items():
        # a tensor that was first met inside starts at version zero
        old, old_version = before.get(name, (tensor, 0))
        if tensor is not old or version != old_version:
            raise CaptureError(
                f"{name} changes inside torch.utils.checkpoint, and so twice in eager training "
                "and once in a replay; take this checkpoint out (the plan decides what to "
                "recompute), or freeze the statistics (eval mode)"
            )


@contextlib.contextmanager
def same_draws(preserve: bool) -> Iterator[None]:
    """Refuse random draws in a region that eager PyTorch runs again without the first state."""
    tracing = any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)
    if preserve or tracing or not torch.is_grad_enabled():
        yield
        return
    with _Draws() as met:
        yield
    if met.first is not None:
        raise CaptureError(
            f"{met.first} draws random numbers inside torch.utils.checkpoint without "
            "preserve_rng_state: backward draws others than forward, so that gradients are wrong; "
            "leave preserve_rng_state=True, or take this checkpoint out (the plan decides what to "
            "recompute)"
        )


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operator that draws."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at an operator, and run it."""
        kwargs = kwargs or {}
        if self.first is None and draws(Call(func, args, kwargs, (), unpack=False)):
            self.first = func
        return func(*args, **kwargs)
