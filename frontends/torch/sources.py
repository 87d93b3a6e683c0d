"""The tensors that a step reads, and the fake ones that stand in for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import CaptureError, a_type
from . import export
from .output import holds_tensors

if TYPE_CHECKING:
    from torch import nn
    from torch.utils._pytree import TreeSpec

    from .interface import InputKind

# PyTorch refuses them as well, in most steps: what autograd saves, and what is written in place.
INFERENCE = "is an inference tensor (made under torch.inference_mode()), which no backward can read"
NO_INFERENCE = "use its clone(), or make it under torch.no_grad()"


@dataclass
class Source:
    """One tensor that the step reads.

    Attributes
    ----------
    kind
        "param", "buffer", "input" or "constant".
    real
        The user's tensor.
    fake
        Its stand-in: same shape, strides, type and device, own storage.
    name
        Full name in `Root` for parameters and buffers.
    position
        Flat position of an input.
    """

    kind: InputKind
    real: torch.Tensor
    fake: torch.Tensor
    name: str = ""
    position: int = -1

    @property
    def label(self) -> str:
        """A short name: the parameter's, or the kind and position."""
        return shown(self.name) or f"{self.kind}.{self.position}"


def shown(name: str) -> str:
    """A name in `Root` as the user knows it."""
    return name.removeprefix("model.") if name != "model" else ""


def module_sources(mode: Any, root: nn.Module, device: torch.device | None) -> list[Source]:
    """Parameters and buffers, each tensor once under its first name."""
    named: list[tuple[InputKind, str, torch.Tensor]] = [
        *(("param", name, p) for name, p in root.named_parameters()),
        *(("buffer", name, b) for name, b in root.named_buffers()),
    ]
    return [
        Source(kind, real, make_fake(mode, real, device, f"{kind} {shown(name)}"), name=name)
        for kind, name, real in named
    ]


def input_sources(
    mode: Any, flat: list[Any], spec: TreeSpec, device: torch.device | None
) -> list[Source]:
    """The tensors of the batch, each once (see `repeated`)."""
    sources = []
    again = repeated(flat)
    for position, leaf in enumerate(flat):
        if position in again:
            continue
        if isinstance(leaf, torch.Tensor):
            fake = make_fake(mode, leaf, device, f"input {position}")
            sources.append(Source("input", leaf, fake, position=position))
        elif holds_tensors(leaf):
            raise CaptureError(
                f"the batch holds {a_type(type(leaf))} with tensors inside; pass the tensors "
                "themselves, or register the class with torch.utils._pytree"
            )
    return sources


def repeated(flat: list[Any]) -> dict[int, int]:
    """Position of a tensor of numbers that was given before, to its first position.

    Its gradients are added up in one place, and code may ask whether two arguments are the same.
    Integers (tokens and labels) have no gradients, and are read like equal ones.
    """
    first: dict[int, int] = {}
    found = {}
    for position, leaf in enumerate(flat):
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            before = first.setdefault(id(leaf), position)
            if before != position:
                found[position] = before
    return found


def home_device(sources: list[Source]) -> torch.device:
    """The one device that the step runs on; CPU scalars beside an accelerator are allowed."""
    devices = {s.fake.device for s in sources if s.fake.device.type != "cpu"}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise CaptureError(f"the step uses several devices ({names}): only one is supported")
    home = devices.pop() if devices else torch.device("cpu")
    if home.type == "cuda" and not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise CaptureError(
            f"the step is for {home}, but this PyTorch is built without CUDA: capture it where it "
            'will run, or with device="cpu"'
        )
    return home


def make_fake(
    mode: Any, tensor: torch.Tensor, device: torch.device | None, what: str
) -> torch.Tensor:
    """A fake tensor that looks like `tensor`, on `device` if it has none of its own."""
    if tensor.layout is not torch.strided:
        raise CaptureError(f"{what} is {tensor.layout}: only dense tensors can be captured")
    if tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        raise CaptureError(f"{what} is quantized, nested or lazily conjugated: not supported")
    if tensor.is_inference():
        raise CaptureError(f"{what} {INFERENCE}: {NO_INFERENCE}")
    if not (export.is_plain(tensor) or export.is_fake(tensor)):
        raise CaptureError(
            f"{what} is {a_type(type(tensor))}, not a plain tensor; capture the model before "
            "it is sharded or quantized"
        )
    where = tensor.device
    if where.type == "meta":
        if device is None:
            raise CaptureError(f"{what} is on the meta device: pass device=, where it will run")
        where = device
    with mode:
        fake = torch.empty_strided(
            tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=where
        )
    return fake.requires_grad_() if tensor.requires_grad else fake


def shared_memory(sources: list[Source], changed: set[int]) -> list[int]:
    """For each source the first one that shares its memory.

    Raises
    ------
    CaptureError
        If one of several sources that share memory is changed by the step.
    """
    first: dict[int, int] = {}
    found = []
    for index, source in enumerate(sources):
        key = export.storage_key(source.real) if export.is_plain(source.real) else -1 - index
        found.append(first.setdefault(key, index))
    for index in changed:
        others = [i for i, f in enumerate(found) if f == found[index] and i != index]
        if others:
            what = [shown(sources[i].name) or sources[i].kind for i in (index, others[0])]
            raise CaptureError(
                f"the step changes {what[0]}, which shares memory with {what[1]}; pass a clone"
            )
    return found
