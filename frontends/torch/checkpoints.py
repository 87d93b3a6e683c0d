"""`torch.utils.checkpoint` in the user's code, which a capture runs plainly.

What to recompute is the plan's decision, and the checkpoint's own recomputation would restore the
real generator's state, which a trace cannot see.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint

from ...solver.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    State = dict[str, tuple[torch.Tensor, int]]

_REENTRANT = "CheckpointFunction"
# What runs around the function otherwise: the second name is from 2.14 on.
_GENERATORS = (
    "_checkpoint_without_reentrant_generator",
    "_checkpoint_without_reentrant_generator_impl",
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
        def apply(function: Any, _preserve: Any, *args: Any) -> Any:
            with unchanged(state):
                return function(*args)

    def plain(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        with unchanged(state):
            yield

    module = torch.utils.checkpoint
    saved = {
        name: getattr(module, name) for name in (_REENTRANT, *_GENERATORS) if hasattr(module, name)
    }
    try:
        for name in saved:
            setattr(module, name, Plain if name == _REENTRANT else plain)
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
