"""The training step as a function of tensors only: parameters, buffers, inputs and constants.

The step runs the user's own modules with their parameters swapped for stand-ins, so the same object
serves a dry run on fake tensors and the joint trace.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...solver.errors import CaptureError
from . import export
from .autocasts import cast_once, casts_are_kept
from .contributions import count_contributions
from .output import flatten_output
from .outside.reads import Reads
from .refills import holders_of, refill_of
from .sources import repeated, shown
from .switches import traced
from .watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.utils._pytree import TreeSpec

    from .questions import Question
    from .refills import Refill
    from .sources import Source


class Root(nn.Module):
    """Model and loss as one module: parameter names start with `model.` or `loss_fn.`."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any] | None,
        loss_batch: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.loss_batch = loss_batch

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model, then the loss."""
        out = self.model(*args, **kwargs)
        if self.loss_fn is None:
            return out
        if self.loss_batch is None:
            return self.loss_fn(out)
        return self.loss_fn(out, self.loss_batch(args, kwargs))


@dataclass
class Leaf:
    """One leaf of the step's output, as the dry run found it.

    Attributes
    ----------
    literal
        The object, for leaves that are not tensors.
    result
        Index among the tensors that the joint graph returns; -1 if it returns none.
    source
        Index of the source that the leaf is, or views; -1 if none.
    differentiable, refuse_backward
        As in `OutputSpec`.
    """

    literal: Any = None
    result: int = -1
    source: int = -1
    differentiable: bool = False
    refuse_backward: bool = False


@dataclass
class Plan:
    """Which leaves of the output the joint graph returns, and how."""

    leaves: list[Leaf] = field(default_factory=list)
    spec: TreeSpec | None = None
    returned: list[int] = field(default_factory=list)


class Step(nn.Module):
    """`forward(*stand_ins)` runs the step on them and returns the tensors that `plan` asks for."""

    def __init__(
        self,
        root: Root,
        sources: list[Source],
        leaves: list[Any],
        in_spec: TreeSpec,
        *,
        trace_hooks: bool,
    ) -> None:
        super().__init__()
        # not registered: the step must have no parameters of its own
        self.__dict__["root"] = root
        self.sources = sources
        self.leaves = leaves
        self.in_spec = in_spec
        self.trace_hooks = trace_hooks
        self.plan: Plan | None = None
        self.contributions: list[int] = []
        self.questions: tuple[Question, ...] = ()
        # what each run did to lists and dicts in its arguments
        self.refills: list[Refill | None] = []
        # for each source: whether autocast kept its casts, if that made a difference
        self.keeps: tuple[bool | None, ...] = (None,) * len(sources)
        self.autocast = ambient_autocast()
        self.autocast_cache = torch.is_autocast_cache_enabled()
        self.switches = traced()
        self.reads = Reads()
        self.names = module_names(root)

    def run(
        self,
        tensors: tuple[torch.Tensor, ...],
        adopt: Callable[[torch.Tensor], torch.Tensor],
    ) -> Any:
        """Run the user's code on `tensors`, one per source; `adopt` meets unknown real tensors."""
        flat = list(self.leaves)
        for source, tensor in zip(self.sources, tensors, strict=True):
            if source.kind == "input":
                flat[source.position] = tensor
        for position, first in repeated(self.leaves).items():
            flat[position] = flat[first]
        args, kwargs = pytree.tree_unflatten(flat, self.in_spec)
        stand_ins = {id(s.real): t for s, t in zip(self.sources, tensors, strict=True)}
        root: Root = self.__dict__["root"]
        watch = Watch(stand_ins, self.names, adopt, self.trace_hooks)
        for source, tensor in zip(self.sources, tensors, strict=True):
            if source.kind == "input":
                watch.known.add_input(tensor, source.real, source.position)
        registered = {
            id(s.real): t
            for s, t in zip(self.sources, tensors, strict=True)
            if s.kind in ("param", "buffer")
        }
        trained = [s.real.requires_grad for s in self.sources]
        kept = [casts_are_kept(s.real) for s in self.sources]
        leaves, others = (
            [t for t, grad, k in zip(tensors, trained, kept, strict=True) if grad and k is leaf]
            for leaf in (True, False)
        )
        keeper = BufferKeeper(root)
        with (
            swapped(root, registered),
            watch,
            torch.enable_grad(),
            contextlib.ExitStack() as stack,
        ):
            stack.enter_context(export.autocast_cache(self.autocast_cache))
            casts = stack.enter_context(cast_once(leaves, others))
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype))
            keeper.note()
            given = dict(kwargs)  # `**kwargs` of a forward are a dict of its own
            holders = holders_of((args, given))
            out = root(args, kwargs)
            keeper.write_back()
            self.refills.append(refill_of((args, given), holders, flat, self.in_spec))
            self.questions = tuple(watch.known.questions)
            self.keeps = tuple(
                k if id(t) in casts.repeated else None for t, k in zip(tensors, kept, strict=True)
            )
            return out

    def lasting(self) -> dict[str, tuple[torch.Tensor, int]]:
        """Name to tensor and version of what outlives the step, while the dry run uses it."""
        found = {}
        for path, module in self.__dict__["root"].named_modules():
            for name, tensor in module._buffers.items():
                if tensor is not None and export.is_fake(tensor):
                    found[f"the buffer {shown(f'{path}.{name}')}"] = tensor, tensor._version
        for index, source in enumerate(self.sources):
            if source.kind in ("input", "constant"):
                place = source.position if source.kind == "input" else index
                found[f"the {source.kind} {place}"] = source.fake, source.fake._version
        return found

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that the joint graph returns."""

        def adopt(tensor: torch.Tensor) -> torch.Tensor:
            raise CaptureError(
                f"the step makes a tensor of shape {list(tensor.shape)} outside PyTorch (from "
                "NumPy, for instance) each time it runs; make it once, or pass it in the batch"
            )

        out = self.run(tensors, adopt)
        assert self.plan is not None
        leaves, _ = flatten_output(out)
        results = []
        for index in self.plan.returned:
            leaf, tensor = self.plan.leaves[index], leaves[index]
            results.append(tensor if leaf.differentiable else tensor.detach())
        self.contributions = count_contributions(results, tensors)
        return results


@contextlib.contextmanager
def swapped(root: nn.Module, stand_ins: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Put stand-ins in the place of parameters and buffers, once per place.

    `torch.func.functional_call` goes by names, and so swaps a module that has two paths twice: the
    second time it takes the stand-in for the original.
    """
    originals: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for module in root.modules():
            kinds: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for registered in kinds:
                for name, tensor in registered.items():
                    if id(tensor) in stand_ins:
                        originals.append((registered, name, tensor))
                        registered[name] = stand_ins[id(tensor)]
        yield
    finally:
        for registered, name, tensor in originals:
            registered[name] = tensor


def ambient_autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """Device type and data type of each autocast that is on."""
    kinds = ("cpu", "cuda", "xpu", "mps")
    return tuple((k, torch.get_autocast_dtype(k)) for k in kinds if torch.is_autocast_enabled(k))


class BufferKeeper:
    """Turns `self.buffer = new` in a forward into a copy into the buffer, so that it is kept."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.before: list[tuple[str, nn.Module, str, torch.Tensor]] = []
        self.parameters: list[tuple[str, nn.Module, str, torch.Tensor]] = []

    def note(self) -> None:
        """Remember the tensors that are registered now."""
        for path, module in self.root.named_modules():
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    self.before.append((f"{path}.{name}", module, name, tensor))
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self.parameters.append((f"{path}.{name}", module, name, parameter))

    def write_back(self) -> None:
        """Copy what was assigned since into the tensors that were registered."""
        for path, module, name, old in self.parameters:
            if module._parameters.get(name) is not old:
                raise CaptureError(f"forward assigns a new tensor to the parameter {shown(path)}")
        known = {(id(module), name) for _, module, name, _ in [*self.before, *self.parameters]}
        for path, module in self.root.named_modules():
            for name, tensor in [*module._buffers.items(), *module._parameters.items()]:
                if tensor is not None and (id(module), name) not in known:
                    what = shown(f"{path}.{name}")
                    raise CaptureError(
                        f"forward registers the parameter or buffer {what}; do it in __init__"
                    )
        for path, module, name, old in self.before:
            new = module._buffers.get(name)
            if new is old:
                continue
            if new is None or new.shape != old.shape or new.dtype != old.dtype:
                raise CaptureError(
                    f"forward replaces the buffer {shown(path)} by a tensor of another shape or "
                    "type; keep both the same"
                )
            with torch.no_grad():
                old.copy_(new)
            module._buffers[name] = old


def module_names(root: Root) -> dict[int, str]:
    """Identity of each module to its path in the user's model."""
    return {id(m): shown(name) for name, m in root.named_modules() if m is not root}
