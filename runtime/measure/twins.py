"""Whether a copy of a model runs for itself: what its steps change must not be the original's.

`copy.deepcopy` does not follow functions: a loss that closes over the model, a `forward` that was
put on an instance and tensors in globals are the same for the copy. Copies with a `__deepcopy__` of
their own may share whatever they like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...frontends.torch.batches import split_batch
from ...solver.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..module import ReplayModule


class Changed(NamedTuple):
    """A tensor that a step writes, or whose gradient it does; `closed`: it is none of the model."""

    name: str
    tensor: torch.Tensor
    closed: bool


def changed_by(module: ReplayModule, batch: Any) -> list[Changed]:
    """What a step changes beside its batch.

    Nothing where no plan is known for the batch.
    """
    planned = module.planned_for(batch)
    if planned is None:
        return []
    captured, guards = planned.captured, planned.wiring.guards
    model, loss_fn = captured.model, captured.loss_fn
    _, args, kwargs = split_batch(batch)
    again = guards.normalise(model, args, kwargs)
    with torch.enable_grad():
        inputs = guards.fast(model, loss_fn, args, kwargs)
        if inputs is None and again is not None:
            inputs = guards.fast(model, loss_fn, *again)
    written = {index for op in captured.program.ops for index in op.changes}
    specs = [pair for pair in enumerate(captured.program.inputs) if pair[1].kind != "tangent"]
    return [
        Changed(spec.fqn or _words(tensor), tensor, spec.kind == "constant")
        for (index, spec), tensor in zip(specs, inputs or (), strict=False)
        if spec.kind != "input"
        and isinstance(tensor, torch.Tensor)
        and (spec.requires_grad or index in written)
    ]


def shared(theirs: Sequence[Changed], ours: Sequence[Changed]) -> list[Changed]:
    """What a copy changes of the original.

    Parameters
    ----------
    theirs, ours
        What `changed_by` says of the original and of its copy.
    """
    memory = _Memory(theirs)
    return [changed for changed in ours if memory.name_of(changed.tensor)]


def refusal(name: str) -> InputError:
    """The error for a copy that would change a tensor of the original."""
    return InputError(
        f"a copy of the model would change the original: its step uses {name}, which both "
        "share, as functions, globals and copy methods of one's own do"
    )


class KeptApart(TorchFunctionMode):
    """Refuses calls on tensors of the original, before they run, by an `InputError`.

    Parameters
    ----------
    theirs
        What `changed_by` says of the original.
    """

    def __init__(self, theirs: Sequence[Changed]) -> None:
        super().__init__()
        self._memory = _Memory(theirs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at all tensors that a call gets.

        What only asks for a property, and gets no tensor, may ask the original.
        """
        kwargs = kwargs or {}
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        asks = getattr(func, "__name__", "") == "__get__"
        if not asks:
            for tensor in given:
                self._memory.refuse(tensor)
        found = func(*args, **kwargs)
        if asks and isinstance(found, torch.Tensor):
            self._memory.refuse(found)
        return found


class _Memory:
    """Where named tensors lie."""

    def __init__(self, tensors: Sequence[Changed]) -> None:
        self._names = {key: name for name, t, _ in tensors for key in _keys(t)}

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name of what it is, or lies in; empty if it is none of them."""
        return next((self._names[key] for key in _keys(tensor) if key in self._names), "")

    def refuse(self, tensor: torch.Tensor) -> None:
        name = self.name_of(tensor)
        if name:
            raise refusal(name)


def _words(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {list(tensor.shape)} that it closes over"


def _keys(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What identifies a tensor, and its memory; inside `torch.func` that of what is wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    return id(tensor), ("at", tensor.untyped_storage().data_ptr() or id(tensor))
