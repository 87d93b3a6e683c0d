"""One buffer for what a step makes and uses up, with every address known before it runs.

The generated code allocates the buffer when forward starts and drops it when backward ends; ops
that can be told where to write do so at their planned offsets. Whatever the caller may keep is not
in it: outputs, gradients, tangents. Neither are results of operators without a kernel for `out=`
(those of convolutions and layer norm make the result elsewhere and copy it), several results at
once, second copies of what is still there, and what is read by operators that look at the whole
storage of an argument: they are allocated as ever.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch

from ...frontends.torch.inplace import fills_storage, placed_variant_of
from ...frontends.torch.program import Kind
from ...solver.memory.addresses import CPU_ALIGNMENT, CUDA_ALIGNMENT, pack
from ...solver.memory.blocks import blocks_of
from ...solver.simulate import simulate

if TYPE_CHECKING:
    from ...frontends.torch.program import Program
    from ...solver.graph import Graph
    from ...solver.memory.blocks import Block
    from ...solver.schedule import Schedule


@dataclass(frozen=True)
class Arena:
    """The buffer of one schedule.

    Attributes
    ----------
    size_bytes, device
        Its length, and where it is.
    offsets
        Execution -> byte at which its result starts, for results that begin a block of the buffer.
    tensors
        Tensors of the graph that live in it.
    dtypes
        Their data types.
    outside
        Operator -> bytes of the results that it makes outside, each execution counted.
    graph
        The step's graph with the whole buffer as resident bytes, and nothing for what is in it.
    peak_bytes
        Predicted peak of the step, resident bytes and the whole buffer included.
    """

    size_bytes: int
    device: torch.device
    offsets: dict[int, int]
    tensors: frozenset[int]
    dtypes: tuple[torch.dtype, ...]
    outside: dict[str, int]
    graph: Graph
    peak_bytes: int

    def new(self) -> torch.Tensor:
        """A fresh buffer."""
        return torch.empty(self.size_bytes, dtype=torch.uint8, device=self.device)


def plan_arena(program: Program, schedule: Schedule, device: torch.device) -> Arena:
    """Decide what of `schedule` lies in the arena, and where.

    Parameters
    ----------
    program, schedule
        The captured step, and a valid schedule of its graph.
    device
        Where the step runs.
    """
    graph = program.graph
    computes = schedule.computes()
    blocks = blocks_of(graph, schedule, workspace=False)
    inside = _inside(program, computes, blocks, device)
    chosen = [block for block in blocks if inside.issuperset(t for _, t in block.makes)]
    found = pack(chosen, CUDA_ALIGNMENT if device.type == "cuda" else CPU_ALIGNMENT)
    outside: Counter[str] = Counter()
    for block in blocks:
        place, t = block.makes[0]
        if t not in inside:
            outside[graph.ops[computes[place]].kind] += block.size_bytes
    sizes = enumerate(graph.tensors)
    bare = msgspec.structs.replace(
        graph,
        tensors=tuple(
            msgspec.structs.replace(it, size_bytes=0) if t in inside else it for t, it in sizes
        ),
        extra_resident_bytes=graph.extra_resident_bytes + found.arena_bytes,
    )
    of = program.value_tensor
    types = {program.value_meta[v].dtype for v, t in enumerate(of) if t in inside}
    return Arena(
        size_bytes=found.arena_bytes,
        device=device,
        offsets={
            block.makes[0][0]: offset
            for block, offset in zip(found.blocks, found.offsets, strict=True)
        },
        tensors=frozenset(inside),
        dtypes=tuple(sorted(types, key=str)),
        outside=dict(outside.most_common()),
        graph=bare,
        peak_bytes=simulate(bare, schedule).peak_bytes,
    )


def _inside(
    program: Program, computes: tuple[int, ...], blocks: list[Block], device: torch.device
) -> set[int]:
    """Tensors all of whose instances can lie in the arena."""
    graph = program.graph
    inside = {t for block in blocks for _, t in block.makes if not graph.tensors[t].output}
    until: dict[int, int] = {}
    for block in blocks:
        for _, t in block.makes:
            if until.get(t, -1) >= block.first:
                inside.discard(t)  # two copies at once
            until[t] = max(until.get(t, -1), block.last)
        place, t = block.makes[0]
        if not _can_be_placed(program, computes[place], t, device):
            inside.discard(t)
    # Where gradients are added to earlier ones, autograd keeps those that have no earlier one.
    inside -= {program.value_tensor[g.value] for g in program.gradients if g.value is not None}
    inside -= _read_whole(program)
    changed = True
    while changed:
        changed = False
        for block in blocks:
            members = {t for _, t in block.makes}
            if members & inside and not members <= inside:
                inside -= members
                changed = True
    return inside


# They count offsets from the start of the storage, or copy all of it.
_WHOLE = frozenset(("aten.as_strided", "aten.as_strided_copy", "aten.copy"))


def _read_whole(program: Program) -> set[int]:
    """Tensors that some operator or view takes for all there is in their storage."""
    calls = [op.call for op in program.ops if op.call is not None]
    found = set()
    for call in (*calls, *program.views.values()):
        packet = str(getattr(call.target, "overloadpacket", call.target))
        if packet in _WHOLE or packet.endswith("_scatter"):
            found |= {program.value_tensor[v] for v in call.refs()}
    return found


def _can_be_placed(program: Program, index: int, tensor: int, device: torch.device) -> bool:
    """Whether an op can be told where to write its one result."""
    op = program.ops[index]
    call = op.call
    if op.kind is not Kind.CALL or call is None or call.unpack or not call.outputs:
        return False
    made = call.outputs[0]
    if made is None or program.value_tensor[made] != tensor:
        return False
    meta = program.value_meta[made]
    if meta.device != device or not fills_storage(meta, program.graph.tensors[tensor].size_bytes):
        return False
    return bool(meta.shape) and placed_variant_of(call, device) is not None
