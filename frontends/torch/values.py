"""Values of the joint graph, the storages that they share, and the calls that make them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from . import export
from .program import Call, ValueMeta

if TYPE_CHECKING:
    import torch


@dataclass
class Line:
    """One call of the joint graph, with what is known about it."""

    name: str
    call: Call
    origin: str
    backward: bool
    view: bool

    @property
    def reads(self) -> list[int]:
        """Values read, each once."""
        return list(dict.fromkeys(self.call.refs()))

    @property
    def writes(self) -> list[int]:
        """Values made."""
        return [v for v in self.call.outputs if v is not None]


@dataclass
class Values:
    """Every value of the program so far.

    Attributes
    ----------
    meta, storage, nbytes, name
        Per value: what it looks like; per value: its storage; per storage: bytes and name.
    """

    meta: list[ValueMeta] = field(default_factory=list)
    storage: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    home: list[torch.device] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    _keep: list[torch.Tensor] = field(default_factory=list)

    def add(self, tensor: torch.Tensor, name: str) -> int:
        """A new value that looks like `tensor` and shares its storage."""
        self._keep.append(tensor)  # or its storage's identity may be used again
        key = export.storage_key(tensor)
        if key not in self._known:
            self._known[key] = self._storage(
                int(tensor.untyped_storage().nbytes()), name, tensor.device
            )
        self.meta.append(meta_of(tensor))
        self.storage.append(self._known[key])
        return len(self.meta) - 1

    def merge(self, value: int, tensor: torch.Tensor) -> None:
        """Count `tensor`, which is about to be added, to the storage of `value`."""
        storage = self.storage[value]
        self._known[export.storage_key(tensor)] = storage
        size = int(tensor.untyped_storage().nbytes())
        self.nbytes[storage] = max(self.nbytes[storage], size)

    def new(self, meta: ValueMeta, name: str) -> int:
        """A new value with a storage of its own, just large enough."""
        self.meta.append(meta)
        size = extent(meta) * meta.dtype.itemsize
        self.storage.append(self._storage(size, name, meta.device))
        return len(self.meta) - 1

    def copy_of(self, value: int, name: str) -> int:
        """A new value like `value` with a storage of its own."""
        return self.new(replace(self.meta[value], storage_offset=0), name)

    def view_of(self, value: int, like: int) -> int:
        """A new value in the storage of `value` that looks like `like`."""
        self.meta.append(self.meta[like])
        self.storage.append(self.storage[value])
        return len(self.meta) - 1

    def _storage(self, nbytes: int, name: str, device: torch.device) -> int:
        self.nbytes.append(nbytes)
        self.name.append(name)
        self.home.append(device)
        return len(self.nbytes) - 1


def meta_of(tensor: torch.Tensor) -> ValueMeta:
    """What a tensor looks like."""
    return ValueMeta(
        tuple(int(n) for n in tensor.shape),
        tuple(int(n) for n in tensor.stride()),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.device,
        int(tensor.untyped_storage().nbytes()) // max(1, tensor.dtype.itemsize),
    )


def extent(meta: ValueMeta) -> int:
    """Elements from the first to the last that the value touches."""
    if 0 in meta.shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(meta.shape, meta.stride, strict=True))


@dataclass
class Traced:
    """The joint graph as lines over values, arguments and results in its own order."""

    lines: list[Line]
    values: Values
    arguments: list[int]
    results: list[int | None]
    constants: list[tuple[int, torch.Tensor]]
