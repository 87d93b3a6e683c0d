"""A graph as compact arrays, for solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .array_types import Bools, Ints
    from .graph import Graph


@dataclass(frozen=True, eq=False)
class GraphArrays:
    """A graph as arrays; `x_ptr[i]:x_ptr[i+1]` is the slice of `x` that belongs to i (CSR).

    Attributes
    ----------
    time, workspace, rerun_workspace, recompute
        Per op: nanoseconds, bytes, bytes, 0 or 1.
    size, producer, output
        Per tensor: bytes, producing op (-1: resident), 0 or 1.
    credit, overwrites
        Per op: bytes that it saves by overwriting an input that dies, and which one; 0 and -1 if
        none, or if its first output is of another size.
    restores, spare
        Per op: the input that only its later executions read, or -1. Per tensor: 1 if nothing else
        reads it, so that it is made only where one of them follows (0 if its op may overwrite).
    in_ptr, in_idx, out_ptr, out_idx
        Inputs and outputs of ops. Resident tensors are left out of the inputs.
    in_first
        Per entry of `in_idx`: whether the first execution of the op reads it, too.
    use_ptr, use_idx
        Ops that read each tensor, ascending.
    """

    time: Ints
    workspace: Ints
    rerun_workspace: Ints
    recompute: Ints
    credit: Ints
    overwrites: Ints
    restores: Ints
    spare: Ints
    size: Ints
    producer: Ints
    output: Ints
    in_ptr: Ints
    in_idx: Ints
    in_first: Bools
    out_ptr: Ints
    out_idx: Ints
    use_ptr: Ints
    use_idx: Ints

    @classmethod
    def of(cls, graph: Graph) -> GraphArrays:
        """Build the arrays of `graph`."""
        ops, tensors = graph.ops, graph.tensors
        producer = np.full(len(tensors), -1, dtype=np.int64)
        for i, op in enumerate(ops):
            producer[list(op.outputs)] = i
        inputs = [[t for t in op.inputs if producer[t] >= 0] for op in ops]
        users: list[list[int]] = [[] for _ in tensors]
        for i, read in enumerate(inputs):
            for t in read:
                users[t].append(i)
        in_ptr, in_idx = _csr(inputs)
        out_ptr, out_idx = _csr([list(op.outputs) for op in ops])
        use_ptr, use_idx = _csr(users)
        overwrites = [
            op.overwrites
            if op.overwrites >= 0
            and tensors[op.overwrites].size_bytes == tensors[op.outputs[0]].size_bytes
            else -1
            for op in ops
        ]
        restores = np.array([op.restores for op in ops], dtype=np.int64)
        spare = np.zeros(len(tensors), dtype=np.int64)
        spare[restores[restores >= 0]] = 1
        for t in np.flatnonzero(spare).tolist():
            spare[t] = not tensors[t].output and all(restores[i] == t for i in users[t])
        for op in ops:
            if op.overwrites >= 0:
                spare[list(op.outputs)] = 0
        workspace = [op.workspace_bytes for op in ops]
        rerun = [
            op.workspace_bytes if op.rerun_workspace_bytes < 0 else op.rerun_workspace_bytes
            for op in ops
        ]
        return cls(
            time=np.array([op.time_ns for op in ops], dtype=np.int64),
            workspace=np.array(workspace, dtype=np.int64),
            rerun_workspace=np.array(rerun, dtype=np.int64),
            recompute=np.array([op.recompute for op in ops], dtype=np.int64),
            credit=np.array(
                [0 if t < 0 else tensors[t].size_bytes for t in overwrites], dtype=np.int64
            ),
            overwrites=np.array(overwrites, dtype=np.int64),
            restores=restores,
            spare=spare,
            size=np.array([t.size_bytes for t in tensors], dtype=np.int64),
            producer=producer,
            output=np.array([t.output for t in tensors], dtype=np.int64),
            in_ptr=in_ptr,
            in_idx=in_idx,
            in_first=in_idx != np.repeat(restores, np.diff(in_ptr)),
            out_ptr=out_ptr,
            out_idx=out_idx,
            use_ptr=use_ptr,
            use_idx=use_idx,
        )

    def inputs(self, op: int) -> Ints:
        """Non-resident tensors that `op` reads."""
        return self.in_idx[self.in_ptr[op] : self.in_ptr[op + 1]]

    def first_inputs(self, op: int) -> Ints:
        """Non-resident tensors that the first execution of `op` reads."""
        span = slice(self.in_ptr[op], self.in_ptr[op + 1])
        return self.in_idx[span][self.in_first[span]]

    def first_inputs_of(self, first: int, last: int) -> Ints:
        """What the first executions of ops first..last read, each once, ascending."""
        span = slice(self.in_ptr[first], self.in_ptr[last + 1])
        found: Ints = np.unique(self.in_idx[span][self.in_first[span]])
        return found

    def made(self, op: int) -> Ints:
        """Tensors that `op` produces in any case: those that only reruns read are left out."""
        outputs = self.outputs(op)
        found: Ints = outputs[self.spare[outputs] == 0]
        return found

    def outputs(self, op: int) -> Ints:
        """Tensors that `op` produces."""
        return self.out_idx[self.out_ptr[op] : self.out_ptr[op + 1]]

    def users(self, tensor: int) -> Ints:
        """Ops that read `tensor`, ascending."""
        return self.use_idx[self.use_ptr[tensor] : self.use_ptr[tensor + 1]]


def _csr(rows: list[list[int]]) -> tuple[Ints, Ints]:
    """Row pointers and concatenated indices of a list of lists."""
    pointer = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=pointer[1:])
    flat = [x for row in rows for x in row]
    return pointer, np.array(flat, dtype=np.int64)
