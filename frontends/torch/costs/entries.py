"""Groups the ops of a step by signature: what costs the same is measured once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..generators import state_functions
from ..program import Call, Kind, ValueRef
from .roofline import op_time
from .signature import Signature, signature

if TYPE_CHECKING:
    from ..program import Program, ProgramOp
    from .machine import Machine
    from .profile_cache import Measurement


@dataclass
class Entry:
    """One signature.

    Attributes
    ----------
    signature, call
        The signature, and the first call that has it.
    roofline_ns
        What a roofline says about its time.
    ops
        Indices of the ops that have it.
    found
        What was measured; None if nothing was.
    """

    signature: Signature
    call: Call
    roofline_ns: int
    ops: list[int] = field(default_factory=list)
    found: Measurement | None = None


def op_call(program: Program, op: ProgramOp) -> Call | None:
    """What an op runs, as a call: snapshots clone, write-backs copy; None for the boundary."""
    if op.kind is Kind.CALL:
        return op.call
    aten: Any = torch.ops.aten
    if op.kind is Kind.SNAPSHOT:
        return Call(aten.clone.default, (ValueRef(op.reads[0]),), {}, op.writes, False)
    if op.kind is Kind.WRITE_BACK and op.target_input is not None:
        target = program.inputs[op.target_input].value
        args = (ValueRef(target), ValueRef(op.reads[0]))
        return Call(aten.copy_.default, args, {}, (None,), False)
    if op.kind is Kind.RNG_STATE:
        return Call(state_functions(state_device(program, op))[0], (), {}, op.writes, False)
    return None


def state_device(program: Program, op: ProgramOp) -> torch.device:
    """Device of the generator whose state an op saves: that of the random call that uses it."""
    for other in program.ops:
        if other.rng_value == op.writes[0] and other.writes:
            return program.value_meta[other.writes[0]].device
    return torch.device("cpu")


def entries_of(program: Program, machine: Machine) -> list[Entry]:
    """All signatures of a program, in the order in which they first occur."""
    found: dict[str, Entry] = {}
    for index, op in enumerate(program.ops):
        call = op_call(program, op)
        if call is None:
            continue
        if op.kind is Kind.RNG_STATE:
            # A bound method has no name that means the same in another process.
            mark = Signature(f"generator state of {state_device(program, op).type}", True)
        else:
            mark = signature(call, program.value_meta)
        entry = found.get(mark.key)
        if entry is None:
            entry = found[mark.key] = Entry(mark, call, op_time(program, op, machine))
        entry.ops.append(index)
    return list(found.values())
