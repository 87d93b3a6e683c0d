"""What PyTorch itself offers against a step that is too large, each as a call of the same model."""

from __future__ import annotations

import contextlib
import copy
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

_aten = torch.ops.aten
PRODUCTS = frozenset(
    {
        _aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default,
        _aten.convolution.default, _aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)  # fmt: skip
BLOCK, SELECTIVE, BUDGET = "block", "selective", "budget"
TITLES = {
    BLOCK: "checkpoint per block",
    SELECTIVE: "selective checkpoint",
    BUDGET: "memory budget",
}


@dataclass(frozen=True)
class Contender:
    """A way to run a training step.

    Attributes
    ----------
    model
        Whose parameters get the gradients.
    call
        Gives the loss of a batch.
    around
        Makes the context in which a step runs.
    """

    model: nn.Module
    call: Callable[..., torch.Tensor]
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def run(self, batch: Sequence[Any]) -> torch.Tensor:
        """Forward and backward; gradients stay."""
        with self.around():
            loss = self.call(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, batch: Sequence[Any]) -> None:
        """Forward and backward, with no gradients before or after."""
        self.run(batch)
        self.model.zero_grad(set_to_none=True)


def per_block(model: nn.Module, blocks: Sequence[nn.Module]) -> Contender:
    """A checkpoint around every block."""
    return Contender(model, model, partial(_wrapped, blocks, {}))


def selective(model: nn.Module, blocks: Sequence[nn.Module]) -> Contender:
    """The same, but matrix products, convolutions and attention are kept."""
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return Contender(model, model, partial(_wrapped, blocks, {"context_fn": contexts}))


def memory_budget(model: nn.Module, share: float) -> Contender:
    """A compiled copy of the model, split by `activation_memory_budget`, run by aot_eager."""
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=_Share(share))
    return Contender(twin, compiled, _quiet)


class _Share:
    """The backend `aot_eager` under one setting."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        options = {"activation_memory_budget": self.share, "activation_memory_budget_solver": "dp"}
        with functorch_config.patch(options):
            return aot_eager(gm, list(inputs))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Compiles as often as asked, and says nothing."""
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=1000):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _wrapped(blocks: Sequence[nn.Module], options: dict[str, Any]) -> Iterator[None]:
    """Forwards of the blocks go through a checkpoint, as users write it."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keep = op in PRODUCTS
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
