"""Compares replayed training with plain training, bit by bit, and measures both.

Two copies of the model train side by side from the same state, random state included: one plain,
one by the plan. Nothing of the caller's changes.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...frontends.torch.batches import split_batch
from ...frontends.torch.deliveries import is_accumulating
from ...frontends.torch.generators import random_states, set_random_states
from ...frontends.torch.outside.alike import same_strides
from ...frontends.torch.refills import with_own_holders
from ...solver.errors import InputError
from ..measure.twins import KeptApart, changed_by, refusal, shared
from ..step.copies import copy_module
from .verification import Item as Item
from .verification import Measured, verification
from .verification import Verification as Verification
from .verify_measure import copy_batch, measure_largest, one_of_each_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..module import ReplayModule

_Record = dict[str, torch.Tensor | None]


def verify(
    model: nn.Module,
    module: ReplayModule,
    batches: Sequence[Any],
    *,
    optimizer: Literal["adamw", "sgd"] | None = "adamw",
    learning_rate: float = 1e-3,
    loss_of: Callable[[Any], torch.Tensor] | None = None,
    measure: bool = True,
    repeats: int = 5,
) -> Verification:
    """Train one step per batch, plain and replayed, and compare.

    Parameters
    ----------
    model
        The plain model.
    module
        What `replay` returned for it.
    batches
        Batches as `capture` takes them, one per step.
    optimizer
        The optimizer that both runs step with; None accumulates gradients over the steps.
    learning_rate
        Its learning rate.
    loss_of
        Takes the scalar loss from what the module returns; by default the output itself, its
        `loss`, or its first element.
    measure
        Also measure the peak and the time of a step of both, with the batch whose plain step has
        the largest peak.
    repeats
        Timed steps of each.

    Raises
    ------
    InputError
        If there is no batch, no scalar loss can be found, or a copy of the model would train the
        original: a loss that closes over the model, or a copy method that copies nothing.
    ReplayError
        If a batch is not one the plan was made for.
    """
    if not batches:
        raise InputError("verify needs at least one batch")
    start = random_states()
    pick = loss_of if loss_of is not None else scalar_loss
    outside: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        outside = _kept_outside(model, module, batches[0], pick)
        set_random_states(start)
        plain_run = Trainee.plain(model, module)
        plain = [plain_run.train(batches, optimizer, learning_rate, pick)]
        end_plain = random_states()
        set_random_states(start)
        _put_back(outside)
        replay_run = Trainee.replayed(module)
        replayed = [replay_run.train(batches, optimizer, learning_rate, pick)]
        end_replayed = random_states()
        items = _compare(plain[0], replayed[0])
        for index, (a, b) in enumerate(zip(end_plain, end_replayed, strict=True)):
            items.append(Item(len(batches) - 1, "random state", str(index), _difference(a, b)))
        measured = Measured(steps=len(batches), kinds=len(one_of_each_kind(batches)))
        if measure:
            kept = is_accumulating(module.captured.graph)
            measured = measure_largest(plain_run, replay_run, batches, pick, repeats, kept)
    finally:
        set_random_states(start)
        _put_back(outside)
    found = replay_run.model.planned_for(batches[measured.step])  # type: ignore[operator]
    return verification(items, measured, found)


def _kept_outside(
    model: nn.Module, module: ReplayModule, batch: Any, pick: Callable[[Any], torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tensors outside of the model that steps write, each with its contents.

    Raises
    ------
    InputError
        If steps of a copy use parameters or buffers of the original.
    """
    theirs = changed_by(module, batch)
    twin, own = Trainee.replayed(module).model, copy_batch(batch)
    found = shared(theirs, changed_by(twin, own))  # type: ignore[arg-type]
    for one in found:
        if not one.closed:
            raise refusal(one.name)
    plain = Trainee.plain(model, module)
    saved = [(one.tensor, one.tensor.detach().clone()) for one in found]
    try:
        with KeptApart([one for one in theirs if not one.closed]):
            plain.step(own, pick)
    finally:
        _put_back(saved)
    return saved


def _put_back(saved: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, contents in saved:
            tensor.copy_(contents)


class Trainee:
    """A copy of the model, with a way to call it."""

    def __init__(
        self, model: nn.Module, loss_fn: Any, call: Callable[..., Any], device: torch.device
    ) -> None:
        self.model, self.call, self.device = model, call, device
        self.loss_module = loss_fn if isinstance(loss_fn, nn.Module) else None

    @classmethod
    def plain(cls, model: nn.Module, module: ReplayModule) -> Trainee:
        """A copy of the plain model, and of a loss that is a module."""
        memo: dict[int, Any] = {}
        twin = copy_module(model, memo)
        loss_fn = module.captured.loss_fn
        if isinstance(loss_fn, nn.Module):
            loss_fn = copy_module(loss_fn, memo)
        captured = replace(module.captured, model=twin, loss_fn=loss_fn)
        return cls(twin, loss_fn, lambda a, k: captured.call(a, k), captured.device)

    @classmethod
    def replayed(cls, module: ReplayModule) -> Trainee:
        """A copy of the module with its plans."""
        twin = copy.deepcopy(module)
        return cls(twin, twin.captured.loss_fn, lambda a, k: twin(*a, **k), twin.captured.device)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Those of the model, and of a loss that is a module as `loss_fn.NAME`."""
        found = dict(self.model.named_parameters())
        if self.loss_module is not None:
            found.update({f"loss_fn.{n}": p for n, p in self.loss_module.named_parameters()})
        return found

    def buffers(self) -> dict[str, torch.Tensor]:
        """Those of the model."""
        return dict(self.model.named_buffers())

    def clear(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters().values():
            parameter.grad = None

    def step(
        self, batch: Any, pick: Callable[[Any], torch.Tensor]
    ) -> tuple[Any, list[Any], list[Any]]:
        """Forward and backward of one batch; the loss, leaves of the batch, and other outputs."""
        _, args, kwargs = split_batch(batch)
        args, kwargs = with_own_holders(args, kwargs)
        # The caller of a step holds all that it returns until the backward is done.
        output = self.call(args, kwargs)
        loss = pick(output)
        loss.backward()  # type: ignore[no-untyped-call]
        others = [leaf for leaf in pytree.tree_leaves(output) if leaf is not loss]
        return loss.detach(), pytree.tree_leaves((args, kwargs)), others

    def train(
        self,
        batches: Sequence[Any],
        optimizer: str | None,
        learning_rate: float,
        pick: Callable[[Any], torch.Tensor],
    ) -> list[_Record]:
        """Train; what there is to compare after each step, on the CPU."""
        self.clear()
        parameters = self.parameters()
        stepper = _optimizer(optimizer, parameters.values(), learning_rate)
        records: list[_Record] = []
        for batch in batches:
            loss, leaves, others = self.step(copy_batch(batch), pick)
            record: _Record = {"loss\t": _host(loss)}
            for place, leaf in enumerate(others):
                if isinstance(leaf, torch.Tensor):
                    record[f"output\t{place}"] = _host(leaf)
            del others
            for name, parameter in parameters.items():
                record[f"gradient\t{name}"] = _host(parameter.grad)
            for place, leaf in enumerate(leaves):
                if isinstance(leaf, torch.Tensor) and leaf.is_leaf:
                    record[f"input gradient\t{place}"] = _host(leaf.grad)
                    record[f"input\t{place}"] = _host(leaf)
            if stepper is not None:
                stepper.step()
                stepper.zero_grad()
            for name, buffer in self.buffers().items():
                record[f"buffer\t{name}"] = _host(buffer)
            for name, parameter in parameters.items():
                record[f"parameter\t{name}"] = _host(parameter)
            records.append(record)
        self.clear()
        return records


def _optimizer(name: str | None, parameters: Any, learning_rate: float) -> Any:
    trained = [p for p in parameters if p.requires_grad]
    if name is None or not trained:
        return None
    if name == "adamw":
        return torch.optim.AdamW(trained, lr=learning_rate)
    if name == "sgd":
        return torch.optim.SGD(trained, lr=learning_rate, momentum=0.9)
    raise InputError(f"optimizer {name!r}: choose adamw, sgd or None")


def scalar_loss(output: Any) -> torch.Tensor:
    """The scalar loss in what a module returns."""
    candidates = [output, getattr(output, "loss", None)]
    if isinstance(output, dict):
        candidates.append(output.get("loss"))
    if isinstance(output, (tuple, list)) and output:
        candidates.append(output[0])
    for found in candidates:
        if isinstance(found, torch.Tensor) and found.numel() == 1:
            return found
    raise InputError("no scalar loss in the output: give loss_of=, a function that picks it")


def _host(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    return tensor.detach().to("cpu", copy=True)


def _compare(plain: list[_Record], replayed: list[_Record]) -> list[Item]:
    items = []
    for step, (a, b) in enumerate(zip(plain, replayed, strict=True)):
        for key in a:
            kind, _, name = key.partition("\t")
            items.append(Item(step, kind, name, _difference(a[key], b.get(key))))
    return items


def _difference(a: torch.Tensor | None, b: torch.Tensor | None) -> str:
    """How two tensors differ, empty if not a bit does."""
    if a is None or b is None:
        if a is b:
            return ""
        return "none plain, a tensor replayed" if a is None else "a tensor plain, none replayed"
    for what in ("dtype", "layout", "shape"):
        one, other = getattr(a, what), getattr(b, what)
        if one != other:
            return f"{what} {one} plain, {other} replayed"
    if a.layout is not torch.strided:
        a, b = a.coalesce().to_dense(), b.coalesce().to_dense()
    if not same_strides(a, b.stride()):
        return f"strides {a.stride()} plain, {b.stride()} replayed"
    if a.numel() == 0 or torch.equal(_bits(a), _bits(b)):
        return ""
    wide = torch.complex128 if a.is_complex() else torch.float64
    gap = (a.to(wide) - b.to(wide)).abs().max().item()
    differing = int((_bits(a) != _bits(b)).sum().item())
    return (
        f"largest difference {gap:.3g}, {differing} of {a.numel() * a.element_size()} bytes differ"
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
