"""The computation graph of one training step: operators, tensors, and what each costs.

An operator ("op") is one call that computes something; a tensor is one storage. Views are not ops.
Ops stand in base order: the order in which the graph runs when nothing is recomputed. Nothing here
knows of PyTorch: front ends make graphs, the solver reads them.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal

import msgspec

from .arrays import GraphArrays
from .calibration import Calibration  # noqa: TC001  graphs are read by their types
from .errors import InputError

Phase = Literal["forward", "backward", "none"]

DELIVER = "lowtide.deliver"  # kind of an op that hands gradients over to be added to those there


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One storage.

    Attributes
    ----------
    name
        Unique name, stable between captures of the same step.
    size_bytes
        Bytes its allocation takes on the device.
    output
        True if it must stay from its production to the end of the step (a loss, a gradient).
    spec
        Data type and shape as text (`f32[4, 128]`), empty for graphs that have none.
    """

    name: str
    size_bytes: int
    output: bool = False
    spec: str = ""


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operator, with indices into the graph's tensors.

    Attributes
    ----------
    name, kind
        Unique name, and the operator it calls (`aten.mm.default`).
    time_ns
        Device time of one execution, in nanoseconds.
    inputs, outputs
        Indices of the tensors it reads and produces, each listed once. Each run makes all outputs.
    workspace_bytes
        Transient bytes that live only during the op, beside inputs and outputs.
    rerun_workspace_bytes
        The same for every execution after the first (a random op must put the generator's state
        back); -1 means the same as `workspace_bytes`.
    recompute
        False if it may run only once: side effects, collectives, the boundary to the backward.
    phase
        Where it runs when nothing is recomputed.
    overwrites
        The input whose memory the first output may take, -1 if none. An execution whose input
        is freed right after it then needs no memory for that output.
    restores
        The input that only executions after the first read, -1 if none: the state of the random
        generator from before the first one, which they put back. What is read in this way only,
        and freed before the next op runs, was never made: it takes no memory.
    module, source
        Module path and line of the user's code, for reports.
    """

    name: str
    kind: str
    time_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace_bytes: int = 0
    rerun_workspace_bytes: int = -1
    recompute: bool = True
    phase: Phase = "none"
    module: str = ""
    source: str = ""
    overwrites: int = -1
    restores: int = -1


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A training step. Tensors that no op produces are resident: parameters, buffers, inputs.

    Attributes
    ----------
    name
        What the graph is of.
    ops, tensors
        Ops in base order; tensors in any order.
    extra_resident_bytes
        Bytes always in memory that no op reads (optimizer state).
    size_unit, time_unit
        `bytes` and `ns`, or `elements` and `cost` for abstract instances.
    meta
        Anything a front end wants to keep (device, versions, cost model).
    calibration
        Measured times of whole steps, which overheads are then told by; None: op times add up.
    """

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    extra_resident_bytes: int = 0
    size_unit: str = "bytes"
    time_unit: str = "ns"
    meta: dict[str, str] = {}
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        """Refuse graphs that are not in topological order or have dangling indices."""
        produced: set[int] = set()
        overwritten: set[int] = set()
        made_somewhere = {t for op in self.ops for t in op.outputs}
        count = len(self.tensors)
        for index, op in enumerate(self.ops):
            where = f"graph {self.name!r}: op {index} ({op.name})"
            if len(set(op.inputs)) != len(op.inputs) or len(set(op.outputs)) != len(op.outputs):
                raise InputError(f"{where} lists a tensor twice")
            for t in (*op.inputs, *op.outputs):
                if not 0 <= t < count:
                    raise InputError(f"{where} names tensor {t}; there are {count}")
            for t in op.inputs:
                if t in made_somewhere and t not in produced:
                    raise InputError(
                        f"{where} reads tensor {t} before it is produced: not a topological order"
                    )
            for t in op.outputs:
                if t in produced:
                    raise InputError(f"{where} produces tensor {t}, which another op produces")
                produced.add(t)
            if op.time_ns < 0 or op.workspace_bytes < 0:
                raise InputError(f"{where} has a negative time or workspace")
            if op.overwrites != -1:
                if op.overwrites not in made_somewhere.intersection(op.inputs) or not op.outputs:
                    raise InputError(
                        f"{where} overwrites tensor {op.overwrites}, which is not an input of it "
                        "that an op produces, or has no output to put there"
                    )
                if self.tensors[op.overwrites].output or op.overwrites in overwritten:
                    raise InputError(
                        f"{where} overwrites tensor {op.overwrites}, which is an output of the "
                        "step or overwritten by another op too"
                    )
                overwritten.add(op.overwrites)
            if op.restores != -1 and (
                op.restores not in made_somewhere.intersection(op.inputs)
                or op.restores == op.overwrites
            ):
                raise InputError(
                    f"{where} restores tensor {op.restores}, which is not an input of it that an "
                    "op produces, or is overwritten by it"
                )
        for index, tensor in enumerate(self.tensors):
            if tensor.size_bytes < 0:
                raise InputError(f"graph {self.name!r}: tensor {index} has a negative size")
        if self.extra_resident_bytes < 0:
            raise InputError(f"graph {self.name!r} has negative extra resident bytes")
        limit = 2**61  # sums of them, and of recomputations, must fit 64 bits
        if max(self._total_bytes(), sum(op.time_ns for op in self.ops)) >= limit:
            raise InputError(
                f"graph {self.name!r}: sizes or times sum to more than {limit}: use larger units"
            )
        names = [op.name for op in self.ops]
        if len(set(names)) != len(names):
            raise InputError(f"graph {self.name!r}: two ops have the same name")
        total = sum(op.time_ns for op in self.ops)
        if self.calibration is not None and self.calibration.points[0][0] != total:
            raise InputError(
                f"graph {self.name!r}: its ops take {total} ns, and its calibration begins at "
                f"{self.calibration.points[0][0]} ns: it is of other op times"
            )

    def _total_bytes(self) -> int:
        work = sum(max(op.workspace_bytes, op.rerun_workspace_bytes) for op in self.ops)
        return self.extra_resident_bytes + work + sum(t.size_bytes for t in self.tensors)

    @cached_property
    def arrays(self) -> GraphArrays:
        """The same graph as compact arrays, for solvers."""
        return GraphArrays.of(self)

    @cached_property
    def resident_bytes(self) -> int:
        """Bytes always in memory: tensors without producer, plus `extra_resident_bytes`."""
        made = {t for op in self.ops for t in op.outputs}
        return self.extra_resident_bytes + sum(
            tensor.size_bytes for i, tensor in enumerate(self.tensors) if i not in made
        )

    @cached_property
    def existing_gradient_bytes(self) -> int:
        """The part of the resident bytes that are gradients which the step adds to."""
        made = {t for op in self.ops for t in op.outputs}
        read = {t for op in self.ops if op.kind == DELIVER for t in op.inputs}
        return sum(self.tensors[t].size_bytes for t in read - made)

    @cached_property
    def structure_hash(self) -> str:
        """SHA-256 over what a schedule depends on: ops, dependencies, shapes; not times."""
        digest = hashlib.sha256()
        for tensor in self.tensors:
            size = "" if tensor.spec else str(tensor.size_bytes)
            digest.update(f"t {tensor.spec} {size} {int(tensor.output)}\n".encode())
        for op in self.ops:
            line = f"o {op.kind} {op.inputs} {op.outputs} {int(op.recompute)} {op.phase}"
            line += "" if op.overwrites < 0 else f" {op.overwrites}"
            line += "" if op.restores < 0 else f" again {op.restores}"
            digest.update(f"{line}\n".encode())
        return digest.hexdigest()

    @cached_property
    def boundary(self) -> int:
        """Index of the first backward op; the number of ops if there is none."""
        for index, op in enumerate(self.ops):
            if op.phase == "backward":
                return index
        return len(self.ops)
