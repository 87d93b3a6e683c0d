"""The captured program: what each op of the graph runs, and what goes in and comes out.

A *value* is one tensor of the exported graph, a *tensor* of the `Graph` is one storage. Every value
belongs to exactly one storage. Base values are made by ops or are inputs; all others are views,
made on demand from their source value, and never scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .outside.reads import Reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch.utils._pytree import TreeSpec

    from ...solver.graph import Graph
    from .interface import GradSpec, InputSpec, LiteralGuard, OutputSpec, TensorGuard
    from .questions import Question
    from .refills import Refill


class Kind(StrEnum):
    """What a program op does."""

    CALL = "call"
    RNG_STATE = "rng_state"
    BACKWARD = "backward"
    WRITE_BACK = "write_back"
    SNAPSHOT = "snapshot"
    DELIVER = "deliver"


@dataclass(frozen=True, slots=True)
class ValueRef:
    """Placeholder for a tensor value inside the arguments of a call."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes
    ----------
    target
        The operator overload, or a Python callable.
    args, kwargs
        Nested arguments: `ValueRef` where a tensor goes, literals otherwise.
    outputs
        Values made; None for an element that nobody uses or that is not a tensor.
    unpack
        True if the target returns a tuple or list whose elements are `outputs`.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    unpack: bool

    @property
    def name(self) -> str:
        """What is called: `aten.mm.default`, or `lowtide.bernoulli` for a Python function."""
        word = getattr(self.target, "__name__", type(self.target).__name__)
        return str(self.target) if hasattr(self.target, "_schema") else f"lowtide.{word}"

    def refs(self) -> Iterator[int]:
        """Values read, in argument order, repeated if read twice."""
        yield from refs_in(self.args)
        yield from refs_in(tuple(self.kwargs.values()))


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """One op of the program, parallel to `Graph.ops`.

    Attributes
    ----------
    kind, call
        What it does; `call` only for `Kind.CALL`.
    reads, writes
        Values read and made. RNG_STATE saves the generator state of its device into `writes[0]`;
        BACKWARD is the boundary and makes the tangents; WRITE_BACK copies `reads[0]` into the
        input `target_input`; SNAPSHOT makes `writes[0]`, a clone of the resident value `reads[0]`;
        DELIVER ends a stage of backward, which hands over the gradients `reads`.
    random
        True for a call that draws random numbers.
    rng_value
        For a random call: the value that holds the generator state from before its first run.
    target_input
        For WRITE_BACK: index into `Program.inputs`.
    updates
        For CALL: the inputs (indices into `Program.inputs`) that `call` changes in place.
    again
        For such a call that makes something as well: what runs in its place when it runs again,
        makes the same and changes nothing.
    """

    kind: Kind
    call: Call | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    random: bool = False
    rng_value: int | None = None
    target_input: int | None = None
    updates: tuple[int, ...] = ()
    again: Call | None = None

    @property
    def changes(self) -> tuple[int, ...]:
        """All inputs (indices into `Program.inputs`) that the op writes into."""
        return self.updates if self.target_input is None else (self.target_input,)


@dataclass(frozen=True, slots=True)
class ValueMeta:
    """Shape, strides and offset (elements), data type and device of a value.

    `storage` is the length of its storage in elements; 0 if that does not matter.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    dtype: torch.dtype
    device: torch.device
    storage: int = 0


@dataclass(frozen=True)
class Program:
    """A training step as straight-line code over values.

    Attributes
    ----------
    graph
        The same step for the solver. It has tensors that no value stands for, `after.NAME`: they
        are of no bytes and fix the order of ops (see `ordering`).
    ops
        One per `graph.ops`, same index.
    value_tensor
        Value to index in `graph.tensors`; -1 for a value without storage.
    value_meta
        What each value looks like.
    views
        Value to the call that makes it from another value of the same storage; a call with several
        outputs is the same object under each of them.
    inputs, outputs, gradients
        What goes in, the leaves of the forward output, and the gradients that backward gives.
    in_spec, out_spec
        Structure of `(args, kwargs)` and of the output.
    guards
        One per leaf of `(args, kwargs)`.
    training
        Module path to its `training` flag at capture.
    shared
        Groups of names that were one Parameter or buffer.
    settings
        Module path, attribute and value of the plain numbers, flags and words that modules hold
        (a dropout rate, for instance), None too: constants of the capture.
    reads
        Names that the code of the step looks up: what else is constant.
    autocast
        Device type and data type of each ambient autocast under which the step was captured.
    autocast_cache
        Whether autocast kept the casts of weights.
    switches
        Global settings of PyTorch that the trace read, by name: which kernels are on, for instance.
    questions
        What the step asked about the batch, with the answers that it followed.
    refill
        What it does to lists and dicts in its batch.
    """

    graph: Graph
    ops: tuple[ProgramOp, ...]
    value_tensor: tuple[int, ...]
    value_meta: tuple[ValueMeta, ...]
    views: dict[int, Call]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    out_spec: TreeSpec
    gradients: tuple[GradSpec, ...]
    in_spec: TreeSpec
    guards: tuple[TensorGuard | LiteralGuard, ...]
    training: dict[str, bool]
    shared: tuple[tuple[str, ...], ...]
    settings: tuple[tuple[str, str, int | float | str | None], ...] = ()
    reads: Reads = field(default_factory=Reads)
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    autocast_cache: bool = True
    switches: tuple[tuple[str, Any], ...] = ()
    questions: tuple[Question, ...] = ()
    refill: Refill | None = None


def refs_in(argument: Any) -> Iterator[int]:
    """Values that a nested argument names, in order."""
    if isinstance(argument, ValueRef):
        yield argument.index
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from refs_in(item)
    elif isinstance(argument, dict):
        for item in argument.values():
            yield from refs_in(item)
    elif isinstance(argument, slice):
        yield from refs_in((argument.start, argument.stop, argument.step))
